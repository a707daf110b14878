"""Many prompts in one call: the bits of one after the other, whoever waits, ends or fails."""

from __future__ import annotations

import _thread
import io
import pickle
import sys
import threading
import types
from typing import Any

import numpy as np
import pytest
from conftest import PROMPT, load

from dendrite import (
    BranchBusy,
    Budget,
    Cancel,
    ConstraintError,
    DecodeParams,
    Engine,
    Error,
    Finish,
    Generation,
    Regex,
    Session,
)

PROMPTS = ["S 24: 4 6\n", PROMPT, "S 24: 3 8\n", PROMPT, "S 24: 4 5 6 10\n", PROMPT]
HOT = DecodeParams(max_tokens=20, temperature=5.0)


def ids(out: Any) -> Any:
    return [ids(one) for one in out] if isinstance(out, list) else out.ids


def test_bits_are_those_of_one_after_the_other(engine: Engine) -> None:
    with engine.session(seed=3) as alone:
        wanted = [alone.generate(prompt, HOT).ids for prompt in PROMPTS]
    assert len({tuple(one) for one in wanted}) == len(PROMPTS)  # equal prompts draw apart
    for at_once in (None, 1, 2, 100):
        with engine.session(seed=3) as session:
            assert ids(session.generate(PROMPTS, HOT, at_once=at_once)) == wanted
    with engine.session(seed=3) as by_hand:
        assert by_hand.decode(by_hand.prefill(PROMPTS[0]), HOT).ids == wanted[0]


def test_samples_of_each(engine: Engine) -> None:
    with engine.session(seed=3) as alone:
        wanted = [[g.ids for g in alone.decode(alone.prefill(p).fork(3), HOT)] for p in PROMPTS]
    with engine.session(seed=3) as session:
        assert ids(session.generate(PROMPTS, HOT, n=3, at_once=2)) == wanted
    with engine.session(seed=3) as session:
        assert ids(session.generate(PROMPTS[0], HOT, n=3)) == wanted[0]


def test_kinds_of_prompts(session: Session) -> None:
    engine = session.engine
    greedy = DecodeParams(max_tokens=8, temperature=0)
    chat = [{"role": "user", "content": "24: 4 6"}]
    text = session.generate(engine.render_chat(chat)[len("<|bos|>") :], greedy)
    tokens = engine.encode("S 24: 4 6\n")
    for one in (tokens, tokens.tolist(), tuple(tokens), chat, "S 24: 4 6\n"):
        assert session.generate(one, greedy).ids == text.ids
    all_of_them = session.generate([tokens, chat, "S 24: 4 6\n"], greedy)
    assert ids(all_of_them) == [text.ids] * 3
    assert ids(session.generate(np.stack([tokens, tokens]), greedy)) == [text.ids] * 2
    assert session.generate([], greedy) == [] == session.generate((), greedy, n=2)


def test_a_seed_of_each(engine: Engine) -> None:
    with engine.session(seed=11) as other:
        wanted = ids(other.generate(PROMPT, HOT, n=2, seed=5))
        [alone] = other.generate([PROMPT], HOT, seeds=[5])
        assert other.generate(PROMPT, HOT.replace(seed=5)).ids == alone.ids  # once more, the same
        assert other.generate(PROMPT, HOT, seed=6).ids != alone.ids
        assert other.stats().tokens_generated > 0
    with engine.session(seed=3) as session:
        plain = ids(session.generate(PROMPTS, HOT))
    with engine.session(seed=4) as session:
        again = session.generate([PROMPT, PROMPT], HOT, n=2, seed=5, at_once=1)
        assert ids(again) == [wanted, wanted] and wanted[0] != wanted[1]
    with engine.session(seed=3) as session:
        mixed = session.generate([PROMPT, *PROMPTS], HOT, seeds=[5] + [None] * len(PROMPTS))
        assert ids(mixed[1:]) == plain and mixed[0].ids == alone.ids  # it shifts no other's
    with engine.session(budget=Budget(tokens=3)) as poor:
        assert poor.generate(PROMPT, HOT, seed=5).finish is Finish.BUDGET


def test_parameters_of_each(session: Session) -> None:
    sizes = [5, 3, 9]
    each = [DecodeParams(max_tokens=size, ignore_eos=True) for size in sizes]
    out = session.generate(PROMPTS[:3], each, temperature=0)
    assert [len(one.ids) for one in out] == sizes
    with pytest.raises(Error, match="got 2 params and 3 prompts"):
        session.generate(PROMPTS[:3], each[:2])


def test_log_probs(session: Session) -> None:
    out = session.generate(PROMPT, max_tokens=4, logprobs=True)
    assert [chosen.id for chosen in out.logprobs] == out.ids and out.logprobs[0].top == []
    assert not session.generate(PROMPT, max_tokens=4).logprobs
    params = DecodeParams(logprobs=True, top_logprobs=2, max_tokens=2)
    assert len(session.generate(PROMPT, params).logprobs[0].top) == 2
    assert not session.generate(PROMPT, params.replace(top_logprobs=-1, logprobs=False)).logprobs
    with pytest.raises(TypeError, match="logprobs: got an int; expected True or False"):
        DecodeParams(logprobs=5)  # type: ignore[arg-type]


def test_echo(session: Session) -> None:
    tokens = session.engine.encode(PROMPT).tolist()
    one, many = session.generate([tokens[:1], tokens], echo=True, max_tokens=3, n=2)
    assert one[0].prompt_ids == tokens[:1] and one[0].prompt_logprobs == [None]
    [score] = session.prefill(tokens[:1]).score([tokens[1:]])
    for generation in many:
        assert generation.prompt_ids == tokens
        assert generation.prompt_logprobs == [None, *score.tokens]
        assert generation.prompt_top == []
    plain = session.generate(PROMPT, max_tokens=3)
    assert plain.prompt_ids == [] == plain.prompt_logprobs
    told = session.generate(tokens, echo=True, echo_top=2, max_tokens=3)
    assert told.prompt_logprobs == [None, *score.tokens]
    assert [len(place) for place in told.prompt_top] == [0] + [2] * (len(tokens) - 1)
    [top] = session.prefill(tokens[:1]).score([tokens[1:]], top_logprobs=2)
    assert [place[0].logprob for place in told.prompt_top[1:]] == [p[0].logprob for p in top.top]
    with pytest.raises(Error, match="echo_top is -1"):
        session.generate(tokens, echo=True, echo_top=-1)
    with pytest.raises(TypeError, match="echo_top: got a str; expected an int"):
        session.generate(tokens, echo=True, echo_top="2")


def test_what_ended_a_text(session: Session) -> None:
    plain = session.generate(PROMPT, max_tokens=12, temperature=0)
    assert (plain.stop, plain.stop_token) == ("", None)
    by_text = session.generate(PROMPT, max_tokens=12, temperature=0, stop=[plain.text[5:7]])
    assert by_text.stop == plain.text[5:7] and by_text.stop_token is None
    by_token = session.generate(PROMPT, max_tokens=12, temperature=0, stop_tokens=[plain.ids[4]])
    assert (by_token.stop, by_token.stop_token) == ("", plain.ids[4])
    for value in (by_text, by_token):
        copy = pickle.loads(pickle.dumps(value))
        assert (copy.stop, copy.stop_token) == (value.stop, value.stop_token)
    assert by_token.asdict()["stop_token"] == plain.ids[4]


def test_echo_does_not_change_what_is_drawn(engine: Engine) -> None:
    with engine.session(seed=3) as session:
        wanted = ids(session.generate(PROMPTS, HOT))
    with engine.session(seed=3) as session:
        assert ids(session.generate(PROMPTS, HOT, echo=True)) == wanted


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        ("", Error, "prompt 1 has no tokens"),
        ([0] * 2000, Error, "prompt 1: 2000 tokens; this model has positions for at most 1024"),
        ([5, 9999], Error, "prompt 1: token 1 is 9999; expected 0 to 319"),
        ([1.5, 2.0], TypeError, "prompt 1: got a list; expected a text, token ids"),
        (b"S 24", TypeError, "prompt 1: got a bytes; expected a text"),
        (None, TypeError, "prompt 1: got None"),
    ],
)
def test_what_is_no_prompt_is_named(bad: Any, error: type, says: str, engine: Engine) -> None:
    with engine.session() as session:
        prompts = [PROMPT, bad, PROMPT]
        if bad == "":
            prompts[1] = engine.encode("", add_special=False)
        for call in (session.generate, session.generate_as_completed):
            with pytest.raises(error, match=says):
                call(prompts)
        assert session.stats().tokens_computed == 0  # nothing before all were looked at


def test_how_long_a_prompt_may_be_is_the_engines_to_say() -> None:
    long = [40] * 1500
    with load(kv_tokens=4096, beyond_positions=True) as engine, engine.session() as session:
        assert len(session.generate([PROMPT, long], max_tokens=2, ignore_eos=True)[1].ids) == 2
        computed = session.stats().tokens_computed
        with pytest.raises(Error, match=r"prompt 1: 5000 tokens; the KV pool holds 4096 \(make it"):
            session.generate([PROMPT, [40] * 5000])
        assert session.stats().tokens_computed == computed and engine.stats().sessions == 1


def test_wrong_arguments(session: Session) -> None:
    with pytest.raises(TypeError, match="prompts: got an int; expected a text"):
        session.generate(7)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="seed: got a float"):
        session.generate(PROMPT, seed=1.5)  # type: ignore[call-overload]
    with pytest.raises(Error, match="got 1 seeds and 2 prompts"):
        session.generate([PROMPT, PROMPT], seeds=[1])
    with pytest.raises(Error, match="n is 0; expected >= 1"):
        session.generate(PROMPT, n=0)
    with pytest.raises(Error, match="at_once is 0; expected >= 1"):
        session.generate_as_completed([PROMPT], at_once=0)
    with pytest.raises(ConstraintError):
        session.generate([PROMPT], constraint=Regex("("))
    with pytest.raises(Error, match="max_tokens is -1; expected >= 0"):
        session.generate([PROMPT, PROMPT], [DecodeParams(), DecodeParams(max_tokens=-1)])
    with pytest.raises(TypeError, match="tempperature"):
        session.generate(PROMPT, tempperature=1.0)  # type: ignore[call-overload]
    assert session.stats().tokens_computed == 0


def test_as_they_come(session: Session) -> None:
    sizes = [60, 30, 3]
    each = [DecodeParams(max_tokens=size, ignore_eos=True) for size in sizes]
    came = list(session.generate_as_completed(PROMPTS[:3], each))
    assert [index for index, _ in came] == [2, 1, 0]
    assert [len(out.ids) for _, out in came] == [3, 30, 60]


def test_leaving_early_frees_all(small: Engine) -> None:
    with small.session() as session:
        for _, out in session.generate_as_completed(
            [PROMPT, *PROMPTS], [DecodeParams(max_tokens=1)] + [HOT] * 6, ignore_eos=True
        ):
            assert len(out.ids) == 1
            break
        assert small.stats().pages_used == 0 and session.stats().branches_live == 0


def test_a_small_pool_does_not_thrash() -> None:
    prompts = [f"S 24: {a} {b} 10 13\n" for a in range(1, 9) for b in range(1, 9)]
    params = DecodeParams(max_tokens=40, ignore_eos=True, temperature=1.0)
    with load(kv_tokens=2048) as large, large.session(seed=1) as session:
        wanted = ids(session.generate(prompts, params, at_once=8))
    steps = []
    for at_once in (7, None):  # what fits, and all: the engine lets in what fits
        with load(kv_tokens=512) as tight, tight.session(seed=1) as session:
            assert ids(session.generate(prompts, params, at_once=at_once)) == wanted
            steps.append(tight.stats().steps)
    assert steps[1] <= 1.1 * steps[0]


def test_cancel(small: Engine) -> None:
    cancel = Cancel()
    with small.session() as session:
        params = DecodeParams(max_tokens=900, ignore_eos=True)
        threading.Timer(0.3, cancel.cancel).start()
        out = session.generate(PROMPTS * 2, params, at_once=2, cancel=cancel)
        assert len(out) == 12 and out[-1].finish is Finish.CANCELLED
        assert small.stats().pages_used == 0


@pytest.mark.parametrize("aio", [False, True])
@pytest.mark.parametrize("seconds", [0.01, 0.5])
def test_an_interrupt_ends_it(small: Engine, aio: bool, seconds: float) -> None:
    if aio:
        small._handle.start()
    with small.session() as session:
        timer = threading.Timer(seconds, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            session.generate(PROMPTS, max_tokens=1000, ignore_eos=True, at_once=4)
        assert small.stats().pages_used == 0 and session.stats().branches_live == 0
        assert session.generate("S 24: 4 6\n", temperature=0).text == "6*4=24 | 24\nok\n"


def test_not_in_a_callback(session: Session) -> None:
    def nested(event: object) -> None:
        session.generate(PROMPT)

    with pytest.raises(BranchBusy):
        session.decode(session.prefill(PROMPT), max_tokens=3, on_token=nested)


def test_other_threads_share_it(engine: Engine) -> None:
    with engine.session(seed=3) as session:
        wanted = ids(session.generate(PROMPTS, HOT))
    out: dict[int, Any] = {}

    def one(number: int) -> None:
        with engine.session(seed=3) as own:
            out[number] = ids(own.generate(PROMPTS, HOT, at_once=number + 1))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(out.values()) == [wanted] * 3


def test_progress(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    session.generate(PROMPTS, max_tokens=2, progress=True)
    line = sys.stderr.getvalue()
    assert "generate: 6 of 6 prompts" in line and line.endswith("tokens/s \n")

    class Tqdm:
        n = 0
        closed = False

        def __init__(self, **options: Any) -> None:
            bars.append(self)
            assert options["total"] == 6

        def set_postfix_str(self, text: str, refresh: bool) -> None:
            assert "tokens/s" in text

        def update(self, count: int) -> None:
            self.n += count

        def close(self) -> None:
            self.closed = True

    bars: list[Tqdm] = []
    module = types.ModuleType("tqdm.auto")
    module.tqdm = Tqdm  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    session.generate(PROMPTS, max_tokens=2, progress=True)
    assert [(bar.n, bar.closed) for bar in bars] == [(6, True)]


def test_results_are_values(engine: Engine) -> None:
    with engine.session() as session:
        out = session.generate(PROMPT, max_tokens=4, top_logprobs=2, echo=True)
        [score] = session.prefill(PROMPT).score(["4"])
        events = [event for step in session.stream(session.prefill(PROMPT)) for event in step]
        composed = session.prefill(PROMPT).composition
        kept = [out, out.logprobs[0], out.logprobs[0].top[0], score, events[0], composed]
        kept += [engine.info, session.stats(), engine.stats(), session.prefill(PROMPT).stats()]
    for value in kept:
        copy = pickle.loads(pickle.dumps(value))
        assert type(copy) is type(value) and copy.asdict() == value.asdict()
        assert repr(copy) == repr(value)
    plain = out.asdict()
    assert plain["ids"] == out.ids and plain["logprobs"][0]["top"][0]["id"] >= 0
    assert isinstance(out, Generation) and plain["finish"] is out.finish
