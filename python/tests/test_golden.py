"""python -m dendrite.testing.golden on the goldens of tests/data/models."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import dendrite
from dendrite.testing import golden

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "data" / "models"
NAMES = sorted(path.parent.name for path in GOLDENS.glob("*/golden.safetensors"))


def test_the_shipped_model_gives_transformers_tokens_of_50_prompts(capsys):
    model, folder = ROOT / "models" / "dendrite-24", GOLDENS / "dendrite-24"
    assert golden.main([str(model), "--goldens", str(folder)]) == 0
    assert "6400 of 50 prompts, 0 wrong" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["tinyllama", "qwen3", "mistral"])
def test_other_families_give_transformers_tokens(name):
    folder = GOLDENS / name
    assert golden.main([str(folder), "--goldens", str(folder)]) == 0


@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_those_of_transformers(name):
    reference = golden.read(GOLDENS / name)
    texts = [reference.input_ids[: end + 1] for end in reference.ends]
    folder = GOLDENS / name
    if not (folder / "config.json").exists():  # goldens of a model that lies elsewhere
        folder = ROOT / "models" / name
    with dendrite.Engine(folder, dtype="f32", kv_tokens=4096, threads=1) as engine:
        for pooling, states in (("last_token", reference.last), ("mean", reference.mean)):
            unit = states / np.linalg.norm(states, axis=1, keepdims=True)
            for normalize, theirs in ((True, unit), (False, states)):
                ours = engine.embed(texts, pooling=pooling, normalize=normalize)
                for row, wanted in zip(ours, theirs, strict=True):
                    assert np.linalg.norm(row - wanted) < 2e-5 * np.linalg.norm(wanted), pooling


def test_half_precision_is_held_to_what_transformers_loses():
    folder = GOLDENS / "qwen3"
    with dendrite.Engine(folder, dtype="bf16", kv_tokens=1 << 15) as engine:
        report = golden.compare(engine, golden.read(folder))
    assert report.passed, report
    bound = golden.compare.__globals__["_F32_BOUND"]
    assert report.logit_error > bound and report.vector_error > bound


def test_what_differs_is_found(capsys):
    folder = GOLDENS / "tinyllama"
    reference = golden.read(folder)
    with dendrite.Engine(folder, dtype="f32", kv_tokens=1 << 15) as engine:
        assert golden.compare(engine, reference).passed
        ids = reference.ids.copy()
        ids[7, 5] = (ids[7, 5] + 1) % engine.info.vocab
        wrong = golden.compare(engine, dataclasses.replace(reference, ids=ids))
        assert [(k, i) for k, i, _ in wrong.wrong] == [(7, 5)]
        assert wrong.logprob_error > wrong.tolerance
        logits = reference.logits * 1.001
        assert not golden.compare(engine, dataclasses.replace(reference, logits=logits)).passed
        for swapped in ({"mean": reference.last}, {"last": reference.last * 1.001}):
            wrong = golden.compare(engine, dataclasses.replace(reference, **swapped))
            assert not wrong.passed and wrong.vector_error > wrong.vector_bound
    # Another model's goldens, of the same vocabulary and of another.
    assert golden.main([str(folder), "--goldens", str(GOLDENS / "llama2")]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert golden.main([str(folder), "--goldens", str(GOLDENS / "mistral")]) == 2
    assert "of a vocabulary of 272; expected 320, the model's" in capsys.readouterr().err


def test_what_is_missing_is_named(tmp_path, capsys):
    assert golden.main([str(GOLDENS / "qwen3"), "--goldens", str(tmp_path)]) == 2
    assert "golden.safetensors is missing; expected" in capsys.readouterr().err


def test_transformers_itself_agrees(capsys):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    assert golden.main([str(GOLDENS / "tinyllama"), "--hf"]) == 0
    out = capsys.readouterr().out
    assert "50 prompts, 0 wrong" in out and "FAILED" not in out and "vectors " in out
