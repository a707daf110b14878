"""Constraints: what is generated is what they say, in every call and on every fork."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import pickle
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import DEVICE, PROMPT, ROOT
from schema_help import CALL, CODES, TREE, check

import dendrite
from dendrite import (
    BeamSearch,
    BestFirst,
    BestOfN,
    Branch,
    Choice,
    Constraint,
    ConstraintError,
    Critique,
    DecodeParams,
    DepthFirst,
    Engine,
    Finish,
    ForkJoin,
    JsonObject,
    JsonSchema,
    Lark,
    Mcts,
    Regex,
    SelfConsistency,
    SelfRefinement,
    Session,
    Steps,
    TreeOfThoughts,
)

# A sum has an end whatever a model likes to repeat.
SUM = Lark('start: term ("+" term)~1..9 "=" term\nterm: /[1-9][0-9]?/ | "(" term "-" term ")"\n')
ALL = [
    JsonSchema(CALL),
    JsonObject(),
    Regex("[0-9]{4}-[0-9]{2}"),
    SUM,
    Choice(["sure", "likely", 'im"possible"\n']),
]
ASK = "<|call|>Will it rain in Rome today?\n"


class Weather:
    """Looks like a class of pydantic's."""

    @classmethod
    def model_json_schema(cls, by_alias: bool = True) -> dict[str, Any]:
        return CALL


@pytest.fixture(scope="module")
def tools() -> Iterator[Engine]:
    """The model that writes calls in JSON."""
    with Engine(ROOT / "models/dendrite-tools", device=DEVICE, threads=1) as loaded:
        yield loaded


def is_whole(text: str, constraint: Constraint) -> bool:
    """Whether the text is what the constraint says; of SUM and JsonObject in short."""
    if isinstance(constraint, Choice):
        return text in constraint.options
    if isinstance(constraint, Regex):
        return re.fullmatch(constraint.text, text) is not None
    if isinstance(constraint, Lark):
        return re.fullmatch(r"[-+()0-9]+=[-()0-9]+", text) is not None
    value = json.loads(text)
    if isinstance(constraint, JsonObject):
        return isinstance(value, dict)
    check(value, json.loads(constraint.text))
    return True


@pytest.mark.parametrize("constraint", ALL, ids=lambda c: type(c).__name__)
def test_they_are_values(constraint: Constraint) -> None:
    for same in (
        pickle.loads(pickle.dumps(constraint)),
        copy.deepcopy(constraint),
        eval(repr(constraint), dict(vars(dendrite))),
    ):
        assert same == constraint and hash(same) == hash(constraint)
        assert type(same) is type(constraint) and repr(same) == repr(constraint)
        assert (same.kind, same.text) == (constraint.kind, constraint.text)
    assert [other == constraint for other in ALL].count(True) == 1
    assert constraint != constraint.text
    params = DecodeParams(constraint=constraint)
    assert params == pickle.loads(pickle.dumps(params)) != DecodeParams()
    assert hash(params) == hash(DecodeParams().replace(constraint=constraint))


def test_schemas_come_as_mappings_text_and_classes() -> None:
    assert JsonSchema(CALL) == JsonSchema(Weather) == JsonSchema(JsonSchema(CALL).text)
    assert JsonObject() == JsonSchema({"type": "object"})
    assert JsonSchema({"const": "é"}).text == '{"const":"é"}'
    for wrong in (7, [CALL], None):
        with pytest.raises(TypeError, match="expected a mapping, JSON text, or a class"):
            JsonSchema(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got a str"):
        Choice("sure")
    with pytest.raises(TypeError, match="expected JsonSchema, JsonObject, Regex, Lark or Choice"):
        Constraint()
    with pytest.raises(TypeError, match="constraint: got a dict; expected a JsonSchema"):
        DecodeParams(constraint={"type": "object"})  # type: ignore[arg-type]


@pytest.mark.parametrize("constraint", ALL, ids=lambda c: type(c).__name__)
def test_every_kind_on_both_models(engine: Engine, tools: Engine, constraint: Constraint) -> None:
    ended = 0
    for loaded, prompt in ((engine, PROMPT), (tools, ASK)):
        with loaded.session(seed=1) as session:
            root = session.prefill(prompt)
            for temperature in (0.0, 1.0, 2.0):
                branches = root.fork(8)
                out = session.decode(
                    branches, constraint=constraint, temperature=temperature, max_tokens=200
                )
                for branch, generation in zip(branches, out, strict=True):
                    assert generation.finish in (Finish.STOP, Finish.LENGTH)
                    if generation.finish is Finish.STOP:
                        assert is_whole(generation.text, constraint), generation.text
                        ended += 1
                    assert branch.constraint is None or constraint == branch.constraint
    assert ended >= (8 if isinstance(constraint, JsonObject) else 36)


@pytest.mark.parametrize("schema", [CALL, TREE, CODES], ids=["call", "tree", "codes"])
@pytest.mark.parametrize("model", ["dendrite-24", "dendrite-tools"])
def test_a_hundred_hot_seeds_are_all_valid(
    engine: Engine, tools: Engine, model: str, schema: dict[str, Any]
) -> None:
    loaded, prompt = (engine, PROMPT) if model == "dendrite-24" else (tools, ASK)
    texts = set()
    for seed in range(100):
        with loaded.session(seed=seed) as session:
            root = session.prefill(prompt)
            out = session.decode(
                root, constraint=JsonSchema(schema), temperature=2.0, max_tokens=400
            )
            assert out.finish is Finish.STOP
            check(json.loads(out.text), schema)
            texts.add(out.text)
    assert len(texts) > 5


def test_forks_carry_what_was_matched(session: Session) -> None:
    root = session.prefill(PROMPT).constrain(JsonSchema(CALL))
    assert not root.is_accepted
    session.decode(root, max_tokens=22, temperature=0)
    assert root.finish is Finish.LENGTH and root.text.startswith('{"name":"get_')
    forks = root.fork(16)
    out = session.decode(forks, temperature=2.0, max_tokens=400)
    for fork, generation in zip(forks, out, strict=True):
        assert generation.finish is Finish.STOP and fork.is_accepted
        assert fork.constraint == JsonSchema(CALL)
        assert fork.text == root.text + generation.text
        check(json.loads(fork.text), CALL)
    assert len({fork.text for fork in forks}) > 4
    assert session.decode(forks[0]).ids == [], "a text that can only end draws nothing"


def test_the_mask_is_what_append_takes(session: Session) -> None:
    branch = session.prefill(PROMPT)
    assert branch.allowed_tokens() is None
    branch.constrain(Regex("[a-c]{2}x?"))
    for _ in range(3):
        allowed = branch.allowed_tokens()
        assert allowed is not None
        end = [token for token in session.engine.info.eos if token in allowed]
        assert bool(end) == branch.is_accepted
        takes = []
        for token in range(session.engine.info.vocab):
            try:
                branch.fork().append([token])
            except dendrite.Error:
                continue
            takes.append(token)
        assert allowed == takes
        if session.decode(branch, max_tokens=1).finish is not Finish.LENGTH:
            break


def test_the_past_is_under_what_held_then(session: Session) -> None:
    root = session.prefill(PROMPT)
    free = len(root)
    branch = root.fork().constrain(Regex("[a-c]{6}"))
    session.decode(branch, max_tokens=4)
    middle = branch.at(free + 2)
    branch.constrain(None).append("XYZ")
    assert (branch.constraint, branch.is_accepted) == (None, True)
    assert [branch.at(free + i).constraint is None for i in (-1, 0, 3, 4)] == [
        True,
        False,
        False,
        True,
    ]
    assert middle.constraint == Regex("[a-c]{6}") and not middle.is_accepted
    assert re.fullmatch("[a-c]{4}", session.decode(middle, temperature=2.0).text)
    again = branch.at(free + 3)
    assert re.fullmatch("[a-c]{3}", session.decode(again).text)
    assert session.decode(again.constrain(Choice(["sure"]))).text == "sure"


def test_a_calls_constraint_ends_with_the_call(session: Session) -> None:
    branch = session.prefill(PROMPT)
    first = session.decode(branch, constraint=Choice(["ab", "cd"]))
    assert first.text in ("ab", "cd") and first.finish is Finish.STOP
    free = branch.fork()
    assert session.decode(free, temperature=0).text not in ("ab", "cd")
    second = session.decode(branch, DecodeParams(constraint=Regex("[0-9]{3}")), temperature=2.0)
    assert re.fullmatch("[0-9]{3}", second.text)
    both = session.prefill(PROMPT).constrain(JsonObject())
    with pytest.raises(dendrite.Error, match="expected one of the two"):
        session.decode(both, constraint=JsonObject())


def test_append_refuses_and_adds_nothing(session: Session) -> None:
    branch = session.prefill(PROMPT).constrain(Regex("[a-c]+;"))
    branch.append("ab")
    with pytest.raises(dendrite.Error, match="refuses token 1"):
        branch.append("aX")
    assert branch.text == "ab"
    assert session.decode(branch.append("c;")).finish is Finish.STOP
    assert branch.text == "abc;"


def test_scores_are_minus_infinity_where_it_refuses(session: Session) -> None:
    root = session.prefill(PROMPT)
    free = root.score(["ab", "aX", "X"])
    branch = root.fork().constrain(Regex("a[b-z]"))
    held = branch.score(["ab", "aX", "X"])
    assert (held[0].logprob, held[0].tokens) == (free[0].logprob, free[0].tokens)
    assert held[1].tokens == [free[1].tokens[0], -math.inf] and held[1].logprob == -math.inf
    assert held[2].logprob == -math.inf and not held[2].greedy
    assert branch.fork().select(["aX", "ab"]) == 1
    stuck = branch.fork()
    assert stuck.select(["X", "Y"]) is None and stuck.finish is Finish.DEAD_END


def test_expand_takes_what_is_allowed(session: Session) -> None:
    branch = session.prefill(PROMPT).constrain(Regex("[a-c][0-9]"))
    children = branch.expand(top=100)
    assert sorted(child.text for child in children) == ["a", "b", "c"]
    assert {len(more) for more in session.expand(children, top=100)} == {10}


def test_streams_have_every_token(session: Session, tools: Engine) -> None:
    for seed in range(8):
        with tools.session(seed=seed) as hot:
            root = hot.prefill(ASK)
            whole = hot.decode(root.fork(), constraint=JsonSchema(CALL), temperature=2.0)
        with tools.session(seed=seed) as hot:
            fork = hot.prefill(ASK).fork()
            steps = list(hot.stream(fork, constraint=JsonSchema(CALL), temperature=2.0))
            events = [event for step in steps for event in step]
            assert [event.token for event in events] == whole.ids
            assert "".join(event.text for event in events) == whole.text
            assert fork.finish is Finish.STOP


def test_async_calls_draw_the_same(engine: Engine) -> None:
    held = JsonSchema(TREE)
    with engine.session(seed=3) as session:
        forks = session.prefill(PROMPT).fork(12)
        wanted = [g.ids for g in session.decode(forks, constraint=held, temperature=2.0)]

    async def run() -> None:
        with engine.session(seed=3) as session:
            forks = (await session.aio.prefill(PROMPT)).fork(12)
            parts = (forks[:3], forks[3], forks[4:])
            aio = session.aio
            some = aio.decode(parts[0], constraint=held, temperature=2.0)
            one = aio.decode(parts[1], constraint=held, temperature=2.0)
            first, second = await asyncio.gather(some, one)
            assert [g.ids for g in first] + [second.ids] == wanted[:4]
            rest: dict[int, list[int]] = {}
            async for step in aio.stream(parts[2], constraint=held, temperature=2.0):
                for event in step:
                    rest.setdefault(event.index, []).append(event.token)
            assert [rest[i] for i in range(8)] == wanted[4:]
            others = session.prefill(PROMPT).fork(4)
            done = aio.as_completed(others, constraint=Choice(["a", "b"]), temperature=2.0)
            assert {generation.text async for _, generation in done} <= {"a", "b"}
            with pytest.raises(ConstraintError, match="not"):
                refused = JsonSchema({"not": {"const": 1}})
                await aio.decode(session.prefill(PROMPT), constraint=refused)

    asyncio.run(run())


def test_tokens_without_a_choice_take_no_steps(tools: Engine) -> None:
    with tools.session() as session:
        root = session.prefill(ASK)
        session.decode(root.fork(), max_tokens=1)
        long = Lark('start: "I will say this as it is written, " /[a-z]/')
        steps = tools.stats().steps
        out = session.decode(root.fork(), constraint=long)
        assert len(out.ids) == 35 and tools.stats().steps - steps < 6
        told = session.decode(root.fork(), constraint=long, top_logprobs=0)
        assert told.ids == out.ids and len(told.logprobs) == 35
        assert tools.stats().steps - steps > 30


def test_strategies_take_them(session: Session) -> None:
    held = Regex("[1-9][0-9]?[-+*/][1-9][0-9]?=[0-9]{1,3}")
    beams = session.run_tree(BeamSearch(width=4, constraint=held, max_tokens=20), PROMPT)
    assert beams.branch is not None
    found = [beams.branch.text, *(other.branch.text for other in beams.others if other.branch)]
    assert len(set(found)) == 4 and all(re.fullmatch(held.text, text) for text in found)
    stopped = session.run_tree(BeamSearch(width=3, stop=["="], max_tokens=20), PROMPT)
    assert stopped.branch is not None and re.fullmatch("[^=]+=", stopped.branch.text)
    sampling = DecodeParams(constraint=held, temperature=2.0)
    best = session.run_tree(BestOfN(n=8, sampling=sampling), PROMPT)
    assert best.branch is not None and re.fullmatch(held.text, best.branch.text)
    vote = SelfConsistency(
        n=16, sampling=sampling.replace(constraint=Choice(["sure", "impossible"]))
    )
    assert {each.answer for each in session.run_tree(vote, PROMPT).votes} <= {"sure", "impossible"}
    with pytest.raises(TypeError, match="constraint: got a str"):
        session.run_tree(BeamSearch(constraint="[0-9]"), PROMPT)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="BeamSearch.stop: got a str"):
        session.run_tree(BeamSearch(stop="="), PROMPT)


WHOLE = "([a-c]{2,4}\n){2}[x-z]{3}!"


@pytest.mark.parametrize("kind", [TreeOfThoughts, DepthFirst, BestFirst, Mcts])
def test_a_constrained_root_holds_every_step(session: Session, kind: Any) -> None:
    """Deeper than the texts go: what is whole before is a leaf."""
    strategy = kind(depth=5, steps=Steps(candidates=2))
    result = session.run_tree(strategy, PROMPT, constraint=Regex(WHOLE))
    assert result.finish is Finish.STOP and result.branch is not None
    assert re.fullmatch(WHOLE, result.branch.text) and result.branch.constraint == Regex(WHOLE)
    for thought in result.tree:
        form = "[a-c]{2,4}" if thought.depth < 3 else "[x-z]{3}!"
        assert thought.tokens > 0 and re.fullmatch(form, thought.text)


def test_a_constrained_root_holds_drafts_and_joins(session: Session) -> None:
    texts = []

    def criticise(session: Session, drafts: list[Branch]) -> list[Critique]:
        texts.append(drafts[0].text)
        return [Critique(value=len(texts), feedback=" no: ")]

    refined = session.run_tree(
        SelfRefinement(rounds=1, criticise=criticise), PROMPT, constraint=Regex("[a-c]{5}!")
    )
    assert refined.finish is Finish.STOP
    assert re.fullmatch("[a-c]{5}! no: [a-c]{5}!", texts[1])

    params = DecodeParams(max_tokens=60, temperature=1.0)
    strategy = ForkJoin(
        open="<f>", close="</c>", children=3, max_forks=1, trunk=params, child=params
    )
    form = "[a-c]{4}<f>([k-z]{3,5}</c>){3}[a-c]{2}!"
    joined = session.run_tree(strategy, PROMPT, constraint=Regex(form))
    assert joined.finish is Finish.STOP and joined.branch is not None
    assert joined.joins[0].moved == 0  # nothing of children that short
    assert re.search(form, session.engine.decode(joined.branch.tokens))
    assert joined.branch.constraint_begin == len(session.prefill(PROMPT))
    one = session.run_tree(strategy, PROMPT, constraint=Regex("[a-c]{4}<f>[k-z]{3}</c>[a-c]"))
    assert one.finish is Finish.DEAD_END and not one.joins


def test_it_holds_from_a_token_on(session: Session) -> None:
    branch = session.prefill(PROMPT)
    begin = len(branch)
    branch.append("ab")
    assert branch.constraint_begin is None
    assert not branch.constrain_from(Regex("x+"), begin) and branch.constraint is None
    assert branch.constrain_from(Regex("ab[0-9]{3}"), begin) and branch.constraint_begin == begin
    session.decode(branch, temperature=1.0)
    assert re.fullmatch("ab[0-9]{3}", branch.text)
    with pytest.raises(dendrite.Error, match="expected 0 to"):
        branch.constrain_from(Regex("x"), len(branch) + 1)


@pytest.mark.parametrize(
    ("text", "stop", "found"),
    [("a\nb{3}", "\n", "a\n"), ("a\n\nb{3}", "\n\n", "a\n\n"), ("łÖ€!{5}", "€!", "łÖ€!")],
)
def test_beams_end_with_the_stop(session: Session, text: str, stop: str, found: str) -> None:
    result = session.run_tree(BeamSearch(width=2, stop=[stop], constraint=Regex(text)), PROMPT)
    assert result.branch is not None and result.branch.text == found


def test_snapshots_keep_them(engine: Engine, session: Session) -> None:
    branches = session.prefill(PROMPT).constrain(JsonSchema(TREE)).fork(6)
    session.decode(branches, max_tokens=15, temperature=2.0)
    data = session.snapshot(branches)
    wanted = [g.ids for g in session.decode(branches, temperature=2.0)]
    restored = engine.restore(data)
    assert [branch.constraint for branch in restored.branches] == [JsonSchema(TREE)] * 6
    assert [g.ids for g in restored.session.decode(restored.branches, temperature=2.0)] == wanted


REFUSED = [
    (JsonSchema("{"), "not valid JSON"),
    (JsonSchema({"type": "array", "uniqueItems": True}), "uniqueItems"),
    (JsonSchema({"$ref": "https://example.com/schema"}), "example.com"),
    (JsonSchema({"type": "integer", "minimum": 3, "maximum": 2}), "nsatisfiable"),
    (Regex("(a"), "unclosed group"),
    (Regex("a(?=b)"), "look-around"),
    (Lark("start: other"), 'unknown name: "other"'),
    (Choice([]), "expected at least one"),
]


@pytest.mark.parametrize(("constraint", "why"), REFUSED)
def test_errors_say_why(session: Session, constraint: Constraint, why: str) -> None:
    branch = session.prefill(PROMPT)
    for call in (
        lambda: session.engine.check(constraint),
        lambda: session.decode(branch, constraint=constraint),
        lambda: next(session.stream(branch, constraint=constraint)),
        lambda: branch.constrain(constraint),
    ):
        with pytest.raises(ConstraintError, match=re.escape(why)) as caught:
            call()
        assert isinstance(caught.value, dendrite.Error)
        assert type(caught.value).__module__ == "dendrite"
    assert branch.constraint is None
    assert session.decode(branch, max_tokens=1).ids


def test_check_accepts_what_compiles(engine: Engine) -> None:
    for constraint in ALL:
        engine.check(constraint)
    with pytest.raises(TypeError, match="got a str"):
        engine.check("[0-9]+")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        engine.check(None)  # type: ignore[arg-type]


def test_hostile_schemas_end(session: Session) -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(150):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    wide = {f"key{i}": {"$ref": "#/$defs/a"} for i in range(300)}
    hostile: list[Constraint] = [
        JsonSchema('{"a":' * 100_000),
        JsonSchema(deep),
        JsonSchema({"$defs": {"a": {"type": "object", "properties": wide}}, "$ref": "#/$defs/a"}),
        JsonSchema({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        Regex("(a{1000}){1000}"),
        Regex("((a|b)*c){400}"),
        Lark("start: start start start | /x/"),
    ]
    for constraint in hostile:
        branch = session.prefill(PROMPT)
        began = time.monotonic()
        try:
            out = session.decode(branch, constraint=constraint, temperature=2.0, max_tokens=64)
            assert out.finish in (Finish.STOP, Finish.LENGTH, Finish.DEAD_END)
        except ConstraintError:
            pass
        assert time.monotonic() - began < 20, constraint.text[:60]
    assert session.decode(session.prefill(PROMPT), constraint=Choice(["a"])).text == "a"
