"""DSPy, unmodified: programs, tools, streams and saved programs on real models."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

pytest.importorskip("dspy", reason="pip install -r python/tests/adapters/dspy.txt")

import dspy
import pydantic
from dspy.lm15 import Config, FunctionTool, Message, Request, ToolChoice, materialize_response
from dspy.utils.exceptions import ContextWindowExceededError, LMError

from dendrite import Engine
from dendrite.adapters.dspy import (
    AsyncDendriteEngine,
    DendriteEngine,
    DendriteJSONAdapter,
    lm,
)

from .game24 import MODELS, left_of, puzzles

GREEDY = {"temperature": 0.0, "cache": False}
WEATHER = "What will the weather be in Oslo tomorrow?"


class Plain(dspy.ChatAdapter):
    """Shows the model one input, and takes its answer as the output: small models know no forms."""

    def format(self, signature: Any, demos: Any, inputs: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": inputs[next(iter(signature.input_fields))]}]

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        return dict.fromkeys(signature.output_fields, completion)


def get_weather(city: str, day: str = "today") -> str:
    """The weather forecast of a city."""
    return f"{day} it rains in {city}"


def get_time(city: str) -> str:
    """The local time of a city."""
    return f"noon in {city}"


def asked(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))


def solved(numbers: tuple[int, ...], text: str) -> bool:
    return left_of(numbers, text.removesuffix("ok\n").strip()) == (24,)


def greedy(engine: Engine, numbers: tuple[int, ...]) -> str:
    """What the engine itself generates."""
    with engine.session() as session:
        root = session.prefill(f"S 24: {asked(numbers)}\n")
        return session.decode(root, temperature=0).text


@pytest.fixture
def solve(engine_24: Engine) -> Iterator[dspy.Predict]:
    with dspy.context(lm=lm(engine_24, **GREEDY), adapter=Plain()):
        yield dspy.Predict("numbers -> solution")


def test_predict_gives_what_the_engine_generates(solve: dspy.Predict, engine_24: Engine) -> None:
    for numbers in puzzles(3):
        assert solve(numbers=asked(numbers)).solution == greedy(engine_24, numbers)


def test_predict_may_be_awaited(solve: dspy.Predict, engine_24: Engine) -> None:
    games = puzzles(4)

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*[solve.acall(numbers=asked(game)) for game in games])

    for game, prediction in zip(games, asyncio.run(all_of_them()), strict=True):
        assert prediction.solution == greedy(engine_24, game)


def test_evaluate_runs_in_threads(solve: dspy.Predict, engine_24: Engine) -> None:
    games = puzzles(8)
    dataset = [
        dspy.Example(numbers=asked(game), game=game).with_inputs("numbers") for game in games
    ]
    evaluate = dspy.Evaluate(
        devset=dataset,
        metric=lambda example, prediction, trace=None: solved(example.game, prediction.solution),
        num_threads=4,
        display_progress=False,
    )
    expected = sum(solved(game, greedy(engine_24, game)) for game in games)
    assert evaluate(solve).score == pytest.approx(100 * expected / len(games), abs=0.01)
    assert expected > 0


def test_samples_differ_and_repeat_by_the_seed(engine_24: Engine) -> None:
    def samples(seed: int) -> list[str]:
        sampling = lm(engine_24, seed=seed, temperature=1.0, cache=False, n=6)
        with dspy.context(lm=sampling, adapter=Plain()):
            return dspy.Predict("numbers -> solution")(numbers="1 2 4 7").completions.solution

    assert samples(1) == samples(1) != samples(2)
    assert len(set(samples(1))) > 1


def test_sampling_parameters_reach_the_engine(engine_24: Engine) -> None:
    model = lm(engine_24, **GREEDY)
    [plain], [stopped], [cut] = (
        model("1 2 4 7", **options) for options in ({}, {"stop": ["|"]}, {"max_tokens": 3})
    )
    assert plain.startswith(stopped + "|") and plain.startswith(cut) and len(cut) == 3
    [first] = engine_24.encode(plain[0], add_special=False)
    [biased] = model("1 2 4 7", logit_bias={str(first): -100})
    assert biased[0] != plain[0]


def test_tools_are_called(engine_tools: Engine) -> None:
    adapter = Plain(use_native_function_calling=True)
    with dspy.context(lm=lm(engine_tools, **GREEDY), adapter=adapter):
        ask = dspy.Predict("request: str, tools: list[dspy.Tool] -> calls: dspy.ToolCalls")
        tools = [dspy.Tool(get_weather), dspy.Tool(get_time)]
        [call] = ask(request=WEATHER, tools=tools).calls.tool_calls
    assert (call.name, call.args) == ("get_weather", {"city": "Oslo", "day": "tomorrow"})
    assert call.id.startswith("call_")


def request(text: str, *tools: FunctionTool, model: str = "dendrite/x", **config: Any) -> Request:
    return Request(model, (Message.user(text),), tools=tools, config=Config(**config))


def tool(name: str) -> FunctionTool:
    city = {"type": "string", "maxLength": 20}
    return FunctionTool(name, "", {"type": "object", "properties": {"city": city}})


def test_a_call_is_of_a_tool_that_was_offered(engine_tools: Engine) -> None:
    engine = DendriteEngine(engine_tools)
    response = engine.complete(request(WEATHER, tool("get_time"), temperature=0))
    [call] = response.message.parts
    assert (call.name, call.input) == ("get_time", {"city": "Oslo"})
    assert response.finish_reason == "tool_call"
    said = ToolChoice("none")
    response = engine.complete(request(WEATHER, tool("get_time"), temperature=0, tool_choice=said))
    assert response.message.text == (
        '{"name":"get_weather","arguments":{"city":"Oslo","day":"tomorrow"}}'
    )
    assert response.finish_reason == "stop"


def test_what_a_tool_gave_is_told(engine_tools: Engine) -> None:
    engine = DendriteEngine(engine_tools)
    asked = request("What time is it in Lima?", tool("get_time"), temperature=0)
    called = engine.complete(asked)
    [call] = called.message.parts
    assert (call.name, call.input) == ("get_time", {"city": "Lima"})
    chat = (*asked.messages, called.message, Message.tool(call.id, "noon in Lima"))
    told = engine.complete(dataclasses.replace(asked, messages=chat))
    assert (told.message.text, told.finish_reason) == ("The result: noon in Lima", "stop")
    assert told.usage.cache_read_tokens >= called.usage.input_tokens


def test_a_call_is_made_where_one_is_required(engine_24: Engine) -> None:
    for seed in range(20):
        engine = DendriteEngine(engine_24, seed=seed)
        for choice in (
            ToolChoice("required", parallel=False),
            ToolChoice("required", allowed=("get_time",), parallel=False),
        ):
            asked = request(
                "4 5 6 10",
                *(tool("get_time"), tool("get_weather")),
                **{"temperature": 2.0, "max_tokens": 400, "tool_choice": choice},
            )
            response = engine.complete(asked)
            [call] = response.message.parts
            assert call.name in (choice.allowed or ("get_time", "get_weather"))
            assert call.input.keys() <= {"city"} and not response.adaptations


class Move(pydantic.BaseModel):
    left: int = pydantic.Field(ge=1, le=13)
    operation: Literal["+", "-", "*", "/"]
    right: int = pydantic.Field(ge=1, le=13)


class Plan(dspy.Signature):
    """Plan the moves."""

    numbers: str = dspy.InputField()
    sure: bool = dspy.OutputField()
    verdict: Literal["easy", "hard"] = dspy.OutputField()
    moves: Annotated[list[Move], pydantic.Field(max_length=3)] = dspy.OutputField()


@pytest.mark.parametrize("adapter", [dspy.JSONAdapter, dspy.ChatAdapter])
def test_fields_have_their_types_whatever_is_drawn(engine_24: Engine, adapter: Any) -> None:
    """ChatAdapter asks in words first, and where these cannot be read as JSONAdapter does."""
    plans = set()
    for seed in range(20):
        hot = lm(engine_24, seed=seed, temperature=2.0, max_tokens=300, cache=False)
        with dspy.context(lm=hot, adapter=adapter()):
            plan = dspy.Predict(Plan)(numbers="4 5 6 10")
        assert isinstance(plan.sure, bool) and plan.verdict in ("easy", "hard")
        assert len(plan.moves) <= 3 and all(isinstance(move, Move) for move in plan.moves)
        plans.add(str(plan))
    assert len(plans) > 5


def test_react_ends_with_a_trajectory_whatever_is_drawn(engine_compose: Engine) -> None:
    """The model knows neither tools nor JSON: the fields are there by the grammar alone."""
    adapter = DendriteJSONAdapter(max_length=12, max_items=2)
    react = dspy.ReAct("question -> answer: int", tools=[get_weather, get_time], max_iters=2)
    called = set()
    for seed in range(3):
        hot = lm(engine_compose, seed=seed, temperature=2.0, cache=False)
        with dspy.context(lm=hot, adapter=adapter):
            out = react(question=WEATHER)
        steps = [name for name in out.trajectory if name.startswith("tool_name_")]
        assert 1 <= len(steps) <= 2 and isinstance(out.answer, int)
        for i in range(len(steps)):
            assert len(out.trajectory[f"thought_{i}"]) <= 12
            assert isinstance(out.trajectory[f"tool_args_{i}"], dict)
            assert f"observation_{i}" in out.trajectory
            called.add(out.trajectory[f"tool_name_{i}"])
    assert called <= {"get_weather", "get_time", "finish"} and called


class Anything(dspy.Signature):
    """Fields of all kinds, without bounds."""

    numbers: str = dspy.InputField()
    whole: int = dspy.OutputField()
    part: float = dspy.OutputField()
    texts: list[str] = dspy.OutputField()
    args: dict[str, Any] = dspy.OutputField()
    move: Move | None = dspy.OutputField()


@pytest.mark.parametrize("favoured", ["9", "a", "{", "[", "\\", ","])
def test_bounded_answers_end_whatever_the_model_repeats(engine_24: Engine, favoured: str) -> None:
    [token] = engine_24.encode(favoured, add_special=False)
    model = lm(engine_24, **GREEDY, logit_bias={str(token): 1000})
    adapter = DendriteJSONAdapter(max_length=6, max_items=2)
    with dspy.context(lm=model, adapter=adapter):
        made = dspy.Predict(Anything)(numbers="4 5 6 10")
    assert abs(made.whole) <= 10**15 and isinstance(made.part, float)
    assert len(made.texts) <= 2 and all(len(text) <= 6 for text in made.texts)
    assert len(made.args) <= 2 and all(len(key) <= 6 for key in made.args)
    assert made.move is None or isinstance(made.move, Move)


def test_json_where_no_schema_says_more(engine_tools: Engine) -> None:
    model = lm(engine_tools, temperature=2.0, max_tokens=400, cache=False)
    whole = 0
    for _ in range(10):
        answer = model(WEATHER, response_format={"type": "json_object"})[0]
        text = answer if isinstance(answer, str) else answer["text"]
        try:
            whole += isinstance(json.loads(text), dict)
        except json.JSONDecodeError:  # cut short by max_tokens: strings have no bound here
            assert len(text) > 300
    assert whole > 2


@pytest.mark.parametrize("names", [(), ("get_time",), ("get_time", "get_weather")])
def test_streams_are_the_whole_answer_in_pieces(
    engine_tools: Engine, names: tuple[str, ...]
) -> None:
    asked = request(WEATHER, *map(tool, names), temperature=0)
    engine = DendriteEngine(engine_tools)
    twin = AsyncDendriteEngine(engine)

    async def collect() -> list[Any]:
        return [event async for event in twin.stream(asked)]

    whole, awaited = engine.complete(asked), asyncio.run(twin.complete(asked))
    streams = [list(engine.stream(asked)), asyncio.run(collect())]
    for other in [awaited, *(materialize_response(events, asked) for events in streams)]:
        assert other.finish_reason == whole.finish_reason
        assert other.usage.output_tokens == whole.usage.output_tokens
        parts = [_without_id(part) for part in other.message.parts]
        assert parts == [_without_id(part) for part in whole.message.parts]
    assert (whole.finish_reason == "tool_call") == bool(names)
    if not names:
        assert len(streams[0]) > 10


def _without_id(part: Any) -> Any:
    return part.text if part.type == "text" else (part.name, part.input)


def test_chats_go_on_from_their_branch(engine_24: Engine) -> None:
    engine = DendriteEngine(engine_24)
    first = engine.complete(request("4 5 6 10", temperature=0))
    chat = (Message.user("4 5 6 10"), first.message, Message.user("S 24: 1 2 4 7"))
    second = engine.complete(Request("dendrite/x", chat, config=Config(temperature=0)))
    known = first.usage.input_tokens + first.usage.output_tokens - 1  # all but <|eos|>
    assert second.usage.cache_read_tokens >= known - 1
    assert first.usage.input_tokens > 1 and second.usage.input_tokens > known


def test_a_stream_that_is_closed_ends_its_generation(engine_24: Engine) -> None:
    engine = DendriteEngine(engine_24)
    twin = AsyncDendriteEngine(engine)
    asked = request("4 5 6 10", temperature=0)

    async def begin() -> None:
        stream = twin.stream(asked)
        assert [(await anext(stream)).type for _ in range(3)] == ["start", "delta", "delta"]
        await stream.aclose()

    before = engine_24.stats().branches_live
    stream = engine.stream(asked)
    assert [next(stream).type for _ in range(3)] == ["start", "delta", "delta"]
    stream.close()
    asyncio.run(begin())
    assert engine_24.stats().branches_live == before


def test_programs_are_saved_and_loaded(engine_24: Engine, tmp_path: Path) -> None:
    program = dspy.Predict("numbers -> solution")
    program.lm = lm(str(MODELS / "dendrite-24"), **GREEDY)
    program.save(tmp_path / "program.json")
    loaded = dspy.Predict("numbers -> solution")
    loaded.load(tmp_path / "program.json", allow_unsafe_lm_state=True)
    sync, twin = loaded.lm.engine, loaded.lm._async_engine_spec
    assert isinstance(sync, DendriteEngine) and isinstance(twin, AsyncDendriteEngine)
    assert sync.dump_state() == twin.dump_state() == program.lm.engine.dump_state()
    assert sync.engine is twin._sync.engine, "one model in memory"
    with dspy.context(adapter=Plain()):
        assert loaded(numbers="4 5 6 10").solution == greedy(engine_24, (4, 5, 6, 10))
        assert loaded.deepcopy()(numbers="4 5 6 10").solution == greedy(engine_24, (4, 5, 6, 10))


def test_a_prompt_that_is_too_long_is_told_in_dspys_words(solve: dspy.Predict) -> None:
    with pytest.raises(ContextWindowExceededError, match="expected less than 1024"):
        solve(numbers="1 2 3 4 " * 400)


def test_what_it_cannot_do_is_an_error_or_a_note(engine_24: Engine) -> None:
    model = lm(engine_24, **GREEDY)
    with pytest.raises(LMError, match="uniqueItems"):
        format_ = {"type": "json_schema", "schema": {"type": "array", "uniqueItems": True}}
        model(request("4 5 6 10", model=model.model, response_format=format_))
    response = model(request("4 5 6 10", model=model.model, seed=3))
    assert [note.field for note in response.adaptations] == ["config.seed"]
