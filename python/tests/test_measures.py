"""Perplexity, and files of models with fewer bits a weight."""

from __future__ import annotations

import json
import math
import os
import pathlib
import signal
import threading
from typing import Any

import pytest
from conftest import ROOT

import dendrite
from dendrite import Engine, Perplexity, TextSample, quantize, top1_agreement

SHIPPED = ROOT / "models/dendrite-24"
UNTIED = ROOT / "tests/data/models/llama2"


def held_out(count: int) -> list[TextSample]:
    lines = (SHIPPED / "heldout.jsonl").read_text().splitlines()[:count]
    return [TextSample(**json.loads(line)) for line in lines]


def test_perplexity_is_that_of_scores(engine: Engine) -> None:
    text = "S 24: 4 9 10 13\n"
    got = engine.perplexity([text])
    bos, *ids = engine.encode(text).tolist()
    with engine.session() as session:
        score = session.prefill([bos]).score([ids])[0]
    assert (got.tokens, got.windows) == (len(ids), 1)
    assert got.nats == pytest.approx(-score.logprob, rel=1e-5)
    assert got.value == pytest.approx(math.exp(got.nats / got.tokens))
    assert got.error > 0
    assert got.likeliest == []


def test_prompts_are_given_and_progress_is_told(engine: Engine) -> None:
    told: list[tuple[int, int]] = []
    texts = held_out(40)
    got = engine.perplexity(
        texts, likeliest=True, on_progress=lambda done, all: told.append((done, all))
    )
    scored = sum(len(engine.encode(each.text, add_special=False)) for each in texts)
    assert got.tokens == scored == len(got.likeliest)
    assert told[-1] == (scored, scored)
    assert 1 < got.value < 1.3
    few = engine.perplexity(texts, max_tokens=100)
    assert 100 <= few.tokens < scored


def test_what_is_raised_while_measuring_comes_out(engine: Engine) -> None:
    def stop(done: int, all: int) -> None:
        raise RuntimeError(f"{done} of {all}")

    with pytest.raises(RuntimeError, match="of"):
        engine.perplexity(held_out(4), on_progress=stop)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            engine.perplexity(held_out(300))


@pytest.mark.parametrize("format", ["fp8", "int8", "int4"])
def test_a_model_with_fewer_bits_is_nearly_the_same(
    engine: Engine, tmp_path: pathlib.Path, format: Any
) -> None:
    told: list[str] = []
    out = tmp_path / "out"
    done = quantize(SHIPPED, out, format=format, on_progress=lambda what, *_: told.append(what))
    assert (done.matrices, done.left) == (56, [])
    assert done.group == (128 if format == "int4" else 0)
    assert set(told) == {"writing"}
    texts = held_out(60)
    before = engine.perplexity(texts, likeliest=True)
    with Engine(out, threads=1, kv_tokens=16384) as fewer:
        after = fewer.perplexity(texts, likeliest=True)
    assert after.value == pytest.approx(before.value, rel=0.02)
    assert 0.97 < top1_agreement(before, after) <= 1
    assert top1_agreement(before, before) == 1


def test_calibration_is_taken_and_told(tmp_path: pathlib.Path) -> None:
    told: list[str] = []
    done = quantize(
        SHIPPED,
        tmp_path / "out",
        format="int4",
        calibration=held_out(30),
        on_progress=lambda what, *_: told.append(what),
    )
    assert done.calibration_tokens > 500
    assert done.places == 32
    assert {"calibrating", "scaling", "writing"} == set(told)


def test_the_matrix_of_logits_in_eight_bits(tmp_path: pathlib.Path) -> None:
    done = quantize(UNTIED, tmp_path / "out", format="fp8", output_quantization="int8")
    config = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert config["format"] == "mixed-precision"
    assert done.matrices == 1 + quantize(UNTIED, tmp_path / "other", format="fp8").matrices
    with pytest.raises(dendrite.Error, match="the embeddings give the logits"):
        quantize(SHIPPED, tmp_path / "none", format="fp8", output_quantization="int8")
    assert not (tmp_path / "none").exists()


def test_what_is_raised_while_writing_leaves_no_folder(tmp_path: pathlib.Path) -> None:
    def stop(what: str, done: int, all: int) -> None:
        raise RuntimeError(what)

    with pytest.raises(RuntimeError, match="writing"):
        quantize(SHIPPED, tmp_path / "out", format="int8", on_progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_named(engine: Engine, tmp_path: pathlib.Path) -> None:
    wrong: Any = 3
    with pytest.raises(TypeError, match="texts: got an int; expected a sequence"):
        engine.perplexity(wrong)
    with pytest.raises(TypeError, match="texts: got an int; expected a sequence"):
        engine.perplexity([wrong])
    with pytest.raises(TypeError, match="on_progress: got an int; expected a callable or None"):
        engine.perplexity(["text"], on_progress=wrong)
    with pytest.raises(TypeError, match="window: got a str"):
        engine.perplexity(["text"], window=str(wrong))  # type: ignore[arg-type]
    with pytest.raises(dendrite.Error, match="window is 1"):
        engine.perplexity(["text"], window=1)
    with pytest.raises(dendrite.Error, match="there is no text"):
        engine.perplexity([])
    with pytest.raises(TypeError, match="format: got an int; expected a str"):
        quantize(SHIPPED, tmp_path / "out", format=wrong)
    with pytest.raises(dendrite.Error, match='format is "int5"; expected fp8, int8 or int4'):
        quantize(SHIPPED, tmp_path / "out", format="int5")  # type: ignore[arg-type]
    with pytest.raises(dendrite.Error, match="is there already"):
        quantize(SHIPPED, tmp_path, format="int8")
    with pytest.raises(TypeError, match="other: got None; expected a Perplexity"):
        top1_agreement(engine.perplexity(["text"], likeliest=True), None)  # type: ignore[arg-type]


def test_records_can_be_pickled(engine: Engine) -> None:
    import pickle

    got = engine.perplexity(["some text"], likeliest=True)
    again: Perplexity = pickle.loads(pickle.dumps(got))
    assert again.asdict() == got.asdict()
