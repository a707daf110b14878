"""What wrong arguments are told: which, what was got, what was expected, in Python's words."""

from __future__ import annotations

import inspect
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import PROMPT, ROOT, load

import dendrite
from dendrite import (
    BeamSearch,
    BestFirst,
    BestOfN,
    Branch,
    Budget,
    Cancel,
    Choice,
    DecodeParams,
    DepthFirst,
    Distribution,
    Engine,
    ForkJoin,
    JsonSchema,
    Judgement,
    Lark,
    Mcts,
    Node,
    Piece,
    Regex,
    RenderedPrompt,
    Repair,
    SelfConsistency,
    SelfRefinement,
    Session,
    Steps,
    TreeOfThoughts,
)

FOREIGN = re.compile(r"std::|nb::|dendrite::|nanobind|incompatible function|bad_cast|_core|Handle")
WRONG: list[Any] = [object(), "text", 3, -1, 1.5, None, b"ids", [object()], {}, [1.5], 1 << 80]

MANY = {
    "n": 1,
    "at_once": 1,
    "progress": False,
    "echo": False,
    "echo_top": 1,
    "seeds": [1],
    "cancel": Cancel(),
}
"""Of calls of many prompts."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some wrong values are good paths."""
    monkeypatch.chdir(tmp_path)


def right(engine: Engine, session: Session, branch: Branch) -> dict[str, dict[str, Any]]:
    """Of each public call, arguments that do."""
    many = [branch]
    chunk = session.register_chunk("some text")
    compose = {"repair": Repair(), "mode": "composed", "target_kl": 0.0, "cancel": Cancel()}
    join = {"before_each": "", "after_all": ""}
    decode = {"branches": many, "params": DecodeParams(max_tokens=1), "cancel": Cancel()}
    calls = {"on_token": None, "on_step": None}
    tree = {"strategy": TreeOfThoughts(depth=1), "prompt": PROMPT, "constraint": None}
    save = {"branches": many, "attachment": "", "kv": True}
    many_prompts = {"prompts": [PROMPT], "params": DecodeParams(max_tokens=1), **MANY}
    chosen = {"session": session, "nodes": many, "stop_token": 10, "min_prob": 0.5, "max_tokens": 2}
    return {
        "engine.session": {"seed": 1, "budget": Budget(), "stream": 0, "weight": 1.0},
        "engine.embed": {
            "texts": ["a"],
            "pooling": "mean",
            "normalize": True,
            "add_special": True,
        },
        "engine.perplexity": {
            "texts": ["some text"],
            "window": 8,
            "max_tokens": 4,
            "likeliest": False,
            "on_progress": None,
        },
        "engine.encode": {"text": "a", "add_special": True},
        "engine.encode_after": {"before": [1], "text": "a"},
        "engine.decode": {"ids": [1], "skip_special": False},
        "engine.token_bytes": {"token": 1},
        "engine.check": {"constraint": Regex("a")},
        "engine.render_chat": {"messages": [{}], "add_generation_prompt": True, "tools": None},
        "engine.restore": {"source": b""},
        "engine.events": {"kinds": ["fork"], "capacity": 4},
        "engine.write_events": {"path": "events.jsonl", "kinds": ["fork"]},
        "session.prefill": {
            "prompt": PROMPT,
            "stream": None,
            "add_special": None,
            "cancel": Cancel(),
        },
        "session.register_chunk": {
            "content": "text",
            "prefix": "a",
            "stub": True,
            "name": "",
            "cancel": None,
        },
        "session.compose": {"pieces": [Piece.chunk(chunk)], "exact_behind": False, **compose},
        "session.generate_from_chunks": {
            "pieces": [Piece.chunk(chunk)],
            "params": DecodeParams(max_tokens=1),
            **compose,
            **calls,
        },
        "session.edit": {"branch": branch, "edits": [(0, 1)], "exact_behind": False, **compose},
        "session.compact": {"branch": branch, "keep": [(0, 2)], "summary": "", **compose},
        "session.join": {"siblings": branch.fork(2), **join, **compose},
        "session.join_many": {
            "groups": [branch.fork(2)],
            **join,
            "repair": Repair(),
            "mode": "exact",
        },
        "session.settle": {"branch": branch, "cancel": None},
        "session.audit": {"branch": branch, "cancel": None},
        "session.decode": {**decode, "ahead": (), **calls, "enough": None},
        "session.decode_step": {"branch": branch, "params": None},
        "session.stream": decode,
        "session.score": {"branches": many, "continuations": ["a"], "top_logprobs": 1},
        "session.expand": {"branches": many, "top": 1, "min_prob": 0.0},
        "session.generate": many_prompts,
        "session.generate_as_completed": many_prompts,
        "session.distributions": {"branches": many},
        "session.prune": {"branches": branch.fork(1)},
        "session.run_tree": {**tree, "trace": None, "progress": False},
        "session.save": {"path": "session.kv", **save},
        "session.snapshot": save,
        "branch.fork": {"count": 1},
        "branch.at": {"length": 1, "stream": 1},
        "branch.append": {"what": "a"},
        "branch.encode": {"text": "a"},
        "branch.constrain": {"constraint": None},
        "branch.constrain_from": {"constraint": Regex(".*"), "begin": 1},
        "branch.hold": {"seconds": 1.0},
        "branch.score": {"continuations": ["a"], "top_logprobs": 1},
        "branch.select": {"options": ["a", "b"]},
        "branch.expand": {"top": 1, "min_prob": 0.0},
        "distribution.top": {"n": 1},
        "distribution.logprob": {"id": 1},
        "dendrite.Ledger": {"session": session, "saved": None, "on_commit": None, "on_abort": None},
        "dendrite.Node": {"branch": branch},
        "dendrite.Regex": {"pattern": "a"},
        "dendrite.Lark": {"grammar": 'start: "a"'},
        "dendrite.Choice": {"options": ["a"]},
        "dendrite.JsonSchema": {"schema": {}},
        "dendrite.Piece.text": {"text": "a"},
        "dendrite.Piece.chunk": {"chunk": chunk},
        "dendrite.Piece.span": {"branch": branch, "begin": 0, "end": 1},
        "dendrite.expand_until": chosen,
    }


FIELDS: dict[str, Any] = {
    "max_tokens": 1,
    "stop": ["a"],
    "stop_tokens": [1],
    "temperature": 0.0,
    "top_k": 1,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "bad_words": ["zz"],
    "seed": 1,
    "on_logits": None,
    "logit_bias": {1: 0.0},
    "constraint": None,
    "ignore_eos": True,
    "logprobs": False,
    "top_logprobs": 0,
    "slack": 1.0,
    "speculate": "off",
    "speculate_budget": 1,
    "speculate_tokens": 0,
    "speculate_top_k": 1,
    "speculate_temperature": 1.0,
    "speculate_chain_seed": None,
}


def told(call: Callable[[], object]) -> str:
    """What it raises, in words that are Python's; "" where it takes the argument."""
    try:
        made = call()
        if inspect.isgenerator(made):
            list(made)
    except (TypeError, ValueError, OverflowError, OSError, dendrite.Error) as error:
        text = f"{type(error).__name__}: {error}"
        assert not FOREIGN.search(text), text
        if isinstance(error, TypeError):
            assert "got" in text and "expected" in text, text
        return text
    return ""


def calls(engine: Engine, session: Session) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    branch = session.prefill(PROMPT)
    owners: dict[str, Any] = {
        "engine": engine,
        "session": session,
        "branch": branch,
        "distribution": branch.distribution(),
        "dendrite": dendrite,
    }
    for name, arguments in right(engine, session, branch).items():
        owner, *path = name.split(".")
        target = owners[owner]
        for part in path:
            target = getattr(target, part)
        yield name, target, arguments


def test_every_call_names_what_is_wrong(small: Engine) -> None:
    with small.session(seed=1) as session:
        count = 0
        for name, target, arguments in calls(small, session):
            for argument in arguments:
                for value in WRONG:
                    wrong = arguments | {argument: value}
                    said = told(lambda: target(**wrong))  # noqa: B023 - called at once
                    if isinstance(value, object) and type(value) is object:
                        assert "TypeError" in said, (name, argument, said)
                        assert "got an object" in said, (name, argument, said)
                    count += bool(said)
        assert count > 500


def test_no_public_call_is_left_out(small: Engine) -> None:
    with small.session(seed=1) as session:
        branch = session.prefill(PROMPT)
        known = right(small, session, branch)
    for owner, kind in (
        ("engine", Engine),
        ("session", Session),
        ("branch", Branch),
        ("distribution", Distribution),
    ):
        for name, member in inspect.getmembers(kind, callable):
            if name.startswith("_") or f"{owner}.{name}" in known:
                continue
            # (Those without arguments.)
            assert name in {
                *("close", "start", "stats", "chunks", "tree_text", "node", "prune"),
                *("allowed_tokens", "distribution", "aio", "compatibility"),
                *LATER,
            }, f"{owner}.{name}"


LATER = {"chat", "chat_as_completed"}
"""Calls whose arguments another test looks at, on a model with a template."""


def test_chats_name_what_is_wrong() -> None:
    with Engine(ROOT / "models/dendrite-tools", kv_tokens=8192, threads=1) as engine:
        session = engine.session(seed=1)
        fine: dict[str, Any] = {
            "messages": [{"role": "user", "content": "Hello"}],
            "tools": [{"name": "f", "parameters": {}}],
            "params": DecodeParams(max_tokens=1),
            "tool_choice": "auto",
            "template": {},
            **MANY,
        }
        for argument in fine:
            for value in WRONG:
                said = told(lambda: session.chat(**fine | {argument: value}))  # noqa: B023
                if type(value) is object:
                    assert "TypeError" in said, (argument, said)


def test_fields_of_parameters_name_what_is_wrong(session: Session) -> None:
    assert FIELDS.keys() == {field for field in DecodeParams.__dataclass_fields__}
    branch = session.prefill(PROMPT)
    for name in FIELDS:
        for value in WRONG:
            if isinstance(value, object) and type(value) is object:
                said = told(lambda: DecodeParams(**{name: value}))  # noqa: B023
                assert said.startswith(f"TypeError: {name}: got an object; expected "), said
            told(lambda: DecodeParams(**FIELDS | {name: value}))  # noqa: B023
            told(lambda: session.decode(branch, **FIELDS | {name: value}))  # noqa: B023
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'max_token'"):
        session.decode(branch, max_token=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="max_tokens: got a str; expected an int"):
        session.decode(branch, max_tokens="5")  # type: ignore[arg-type]


def test_fields_of_strategies_name_what_is_wrong(session: Session) -> None:
    for kind in (TreeOfThoughts, DepthFirst, BestFirst, BeamSearch, BestOfN, SelfConsistency):
        check_strategy(session, kind)
    for other in (Mcts, SelfRefinement, ForkJoin):
        check_strategy(session, other)
    for part, name in ((Steps, "steps"), (Judgement, "judgement")):
        for field in part.__dataclass_fields__:
            holder = TreeOfThoughts if part is Steps else BestOfN
            strategy = holder(**{name: part(**{field: object()})})
            assert "TypeError" in told(lambda: session.run_tree(strategy, PROMPT)), field  # noqa: B023


def check_strategy(session: Session, kind: Any) -> None:
    for field in kind.__dataclass_fields__:
        said = told(lambda: session.run_tree(kind(**{field: object()}), PROMPT))
        assert "TypeError" in said, (kind, field, said)


def test_options_of_engines_name_what_is_wrong() -> None:
    path = str(ROOT / "models/dendrite-24")
    for name in inspect.signature(Engine.__init__).parameters:
        if name in ("self", "model"):
            continue
        said = told(lambda: Engine(path, **{name: object()}))  # noqa: B023 - called at once
        assert said.startswith(f"TypeError: {name}: got an object; expected a"), said
    with pytest.raises(TypeError, match="model: got an int; expected a path"):
        Engine(3)  # type: ignore[arg-type]


def test_texts_are_no_branches(session: Session) -> None:
    branch = session.prefill(PROMPT)
    expected = "branches: got a str; expected a Branch, or a sequence of them"
    for call in (session.decode, session.distributions, session.prune, session.snapshot):
        with pytest.raises(TypeError, match=expected):
            call("text")  # type: ignore[operator]
    with pytest.raises(TypeError, match="decode: branch 1: got a str; expected a Branch"):
        session.decode([branch, "text"])  # type: ignore[list-item]


def test_bytes_and_floats_are_no_ids(engine: Engine, session: Session) -> None:
    branch = session.prefill([5, 6])
    takes: list[Callable[[Any], object]] = [
        session.prefill,
        branch.append,
        engine.decode,
        lambda ids: branch.score([ids]),
        lambda ids: session.decode(branch.fork(), stop_tokens=ids, max_tokens=1),
    ]
    for take in takes:
        for ids in (b"ab", bytearray(b"ab"), [1.0], np.array([1.0]), np.zeros((2, 2), np.int32)):
            with pytest.raises(TypeError, match=r"got .*; expected .*(ids|id)"):
                take(ids)
        with pytest.raises(TypeError, match="got an array of bool"):
            take(np.array([True]))
    for good in ([5, 6], (5, 6), np.array([5, 6]), np.array([5, 6], np.uint8), range(5, 7)):
        assert session.prefill(good).tokens.tolist() == [5, 6]
    assert session.prefill(np.array([9, 5, 9, 6])[1::2]).tokens.tolist() == [5, 6]
    with pytest.raises(dendrite.Error, match="outside the vocabulary"):
        session.prefill(np.array([(1 << 32) + 5]))  # not 5


def test_what_is_rendered_has_bos() -> None:
    with load(weights=False) as plain:
        bos = plain.info.bos[0]
        assert plain.encode("a b")[0] == bos
        rendered = RenderedPrompt(plain.decode([bos]) + "a b")
        for whole in (rendered, rendered + " c"):
            assert plain.encode(whole).tolist().count(bos) == 1
            assert plain.encode(whole, add_special=True).tolist().count(bos) == 2
        assert plain.encode(str(rendered)).tolist().count(bos) == 2
        assert plain.encode(rendered).tolist() == plain.encode("a b").tolist()


def test_chats_are_rendered_prompts() -> None:
    with Engine(ROOT / "models/dendrite-tools", weights=False) as engine:
        rendered = engine.render_chat([{"role": "user", "content": "Hello"}])
        assert isinstance(rendered, RenderedPrompt) and isinstance(rendered, str)
        whole = engine.encode(rendered).tolist()
        assert whole == engine.encode(str(rendered), add_special=False).tolist()
        with pytest.raises(TypeError, match="messages: got a str; expected a sequence of mappings"):
            engine.render_chat("Hello")  # type: ignore[arg-type]


def test_sessions_without_a_seed_differ_and_say_theirs(engine: Engine) -> None:
    with engine.session() as one, engine.session() as other:
        assert one.seed != other.seed
        drawn = [
            session.decode(session.prefill(PROMPT).fork(4), max_tokens=24, temperature=1.0)
            for session in (one, other)
        ]
        with engine.session(seed=one.seed) as again:
            same = again.decode(again.prefill(PROMPT).fork(4), max_tokens=24, temperature=1.0)
    ids = [[generation.ids for generation in out] for out in (*drawn, same)]
    assert ids[0] == ids[2] != ids[1]


def test_distributions_are_arrays(session: Session) -> None:
    distribution = session.prefill(PROMPT).distribution()
    array = np.asarray(distribution)
    assert array.dtype == np.float32 and np.array_equal(array, distribution.logits)
    assert np.asarray(distribution, np.float64).dtype == np.float64
    assert np.array(distribution).flags.writeable
    assert int(np.argmax(distribution)) == distribution.top(1)[0].id  # type: ignore[arg-type]


def test_one_default_of_repairs() -> None:
    assert Piece.text("a").repaired().repair == Repair()


def test_models_have_the_names_that_people_know(engine: Engine) -> None:
    assert engine.name == "dendrite-24" and "<Engine: dendrite-24 (" in repr(engine)


def test_what_is_no_strategy_is_told(session: Session) -> None:
    for wrong in (3, TreeOfThoughts, object()):
        with pytest.raises(TypeError, match=r"strategy: got .*; expected one of dendrite.search"):
            session.run_tree(wrong, PROMPT)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"TreeOfThoughts\.depth: got a str; expected an int"):
        session.run_tree(TreeOfThoughts(depth="3"), PROMPT)  # type: ignore[arg-type]


def test_constraints_name_what_is_wrong() -> None:
    with pytest.raises(TypeError, match="pattern: got an int; expected a str"):
        Regex(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="grammar: got a list; expected a str"):
        Lark([])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="options: got an int; expected a sequence of str"):
        Choice([3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="schema: got an int; expected a mapping"):
        JsonSchema(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="branch: got an int; expected a Branch"):
        Node(3)  # type: ignore[arg-type]
