"""Inspect AI, unmodified: evaluations with and without tools on real models."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="pip install -r python/tests/adapters/inspect.txt")

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageUser,
    GenerateConfig,
    Model,
    ResponseSchema,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, accuracy, includes, scorer
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import Tool, ToolFunction, ToolInfo, ToolParams, tool
from inspect_ai.util import JSONSchema

import dendrite.adapters.inspect  # noqa: F401 - registers the provider
from dendrite import ConstraintError, Engine, Error

from . import offline
from .game24 import MODELS, left_of, puzzles

WEATHER = "What will the weather be in Oslo tomorrow?"


@scorer(metrics=[accuracy()])
def checked() -> Scorer:
    """Whether all moves are legal and lead to 24."""

    async def score(state: TaskState, target: Target) -> Score:
        numbers = tuple(int(word) for word in state.input_text.split())
        moves = state.output.completion.removesuffix("ok\n").strip()
        return Score(value=left_of(numbers, moves) == (24,))

    return score


@tool
def get_weather() -> Tool:
    async def execute(city: str, day: str = "today") -> str:
        """The weather forecast of a city.

        Args:
            city: Where.
            day: When.
        """
        return f"{day} it rains in {city}"

    return execute


@tool
def get_time() -> Tool:
    async def execute(city: str) -> str:
        """The local time of a city.

        Args:
            city: Where.
        """
        return f"noon in {city}"

    return execute


def model_on(engine: Engine, **config: Any) -> Model:
    config = {"temperature": 0.0, **config}
    return get_model("dendrite/x", engine=engine, memoize=False, config=GenerateConfig(**config))


def run(task: Task, model: Model, folder: Path) -> EvalLog:
    [log] = eval(task, model=model, log_dir=str(folder), display="none")
    assert log.status == "success", log.error
    return log


def test_an_evaluation_gives_what_the_engine_generates(engine_24: Engine, tmp_path: Path) -> None:
    games = puzzles(8)
    samples = [Sample(input=" ".join(map(str, numbers))) for numbers in games]
    log = run(Task(samples, solver=generate(), scorer=checked()), model_on(engine_24), tmp_path)
    solved = 0
    with engine_24.session() as session:
        for numbers, sample in zip(games, log.samples or [], strict=True):
            root = session.prefill(f"S 24: {' '.join(map(str, numbers))}\n")
            expected = session.decode(root, temperature=0)
            assert sample.output.completion == expected.text
            assert sample.output.stop_reason == "stop"
            usage = sample.output.usage
            assert usage and usage.output_tokens == len(expected.ids)
            known = usage.input_tokens_cache_read or 0
            assert usage.input_tokens + known == root.prompt_length
            solved += left_of(numbers, expected.text.removesuffix("ok\n").strip()) == (24,)
    assert log.results and log.results.scores[0].metrics["accuracy"].value == solved / len(games)
    assert solved > 0


def test_tools_are_called_and_their_results_told(engine_tools: Engine, tmp_path: Path) -> None:
    task = Task(
        [Sample(input=WEATHER, target="tomorrow it rains in Oslo")],
        solver=[use_tools(get_weather(), get_time()), generate()],
        scorer=includes(),
    )
    log = run(task, model_on(engine_tools), tmp_path)
    [sample] = log.samples or []
    asked, called, result, answer = sample.messages
    assert (asked.text, result.role, result.text) == (WEATHER, "tool", "tomorrow it rains in Oslo")
    assert isinstance(called, ChatMessageAssistant)
    [call] = called.tool_calls or []
    assert (call.function, call.arguments) == ("get_weather", {"city": "Oslo", "day": "tomorrow"})
    assert answer.text == sample.output.completion == "The result: tomorrow it rains in Oslo"
    assert sample.output.stop_reason == "stop" and not sample.output.message.tool_calls
    assert log.results and log.results.scores[0].metrics["accuracy"].value == 1


def ask(model: Model, *arguments: Any, **keywords: Any) -> Any:
    return asyncio.run(model.generate(*arguments, **keywords))


def test_a_tool_choice_is_kept(engine_tools: Engine) -> None:
    for keywords in (
        {"tools": [get_time()]},
        {"tools": [get_weather(), get_time()], "tool_choice": ToolFunction("get_time")},
    ):
        output = ask(model_on(engine_tools), WEATHER, **keywords)
        assert output.stop_reason == "tool_calls" and output.completion == ""
        [call] = output.message.tool_calls
        assert (call.function, call.arguments) == ("get_time", {"city": "Oslo"})
    output = ask(model_on(engine_tools), WEATHER, tools=[get_weather()], tool_choice="none")
    assert output.stop_reason == "stop" and not output.message.tool_calls
    assert json.loads(output.completion)["name"] == "get_weather"


def test_calls_are_made_where_they_are_required(engine_24: Engine) -> None:
    dice = ToolInfo(
        name="roll",
        description="",
        parameters=ToolParams(
            properties={"sides": JSONSchema(type="integer", minimum=2, maximum=20)},
            required=["sides"],
        ),
    )
    for seed in range(20):
        hot = model_on(engine_24, seed=seed, temperature=2.0, parallel_tool_calls=False)
        for choice in ("any", ToolFunction("roll")):
            output = ask(hot, "4 5 6 10", tools=[dice], tool_choice=choice)
            [call] = output.message.tool_calls
            assert call.function == "roll" and 2 <= call.arguments["sides"] <= 20
            assert output.stop_reason == "tool_calls" and call.parse_error is None


def test_answers_have_the_response_schema(engine_24: Engine, tmp_path: Path) -> None:
    schema = JSONSchema.model_validate(
        {
            "type": "object",
            "properties": {
                "numbers": {"type": "array", "items": {"enum": [4, 5, 6, 10]}},
                "sure": {"type": "boolean"},
            },
            "required": ["numbers", "sure"],
            "additionalProperties": False,
        }
    )
    held = ResponseSchema(name="verdict", json_schema=schema)
    hot = model_on(engine_24, temperature=2.0, num_choices=20, max_tokens=300, response_schema=held)
    task = Task([Sample(input="4 5 6 10")], solver=generate())
    [sample] = run(task, hot, tmp_path).samples or []
    for choice in sample.output.choices:
        assert choice.stop_reason == "stop"
        verdict = json.loads(choice.message.text)
        assert set(verdict) == {"numbers", "sure"} and isinstance(verdict["sure"], bool)
        assert {*verdict["numbers"]} <= {4, 5, 6, 10}
    assert len({choice.message.text for choice in sample.output.choices}) > 5


def test_chats_go_on_from_their_branch(engine_24: Engine) -> None:
    model = model_on(engine_24)
    first = ask(model, "4 5 6 10")
    second = ask(
        model,
        [
            ChatMessageUser(content="4 5 6 10"),
            ChatMessageAssistant(content=first.completion),
            ChatMessageUser(content="S 24: 1 2 4 7"),
        ],
    )
    known = first.usage.total_tokens - 1  # all but <|eos|>
    assert second.usage.input_tokens_cache_read >= known - 1
    assert second.usage.input_tokens <= len("\nS 24: 1 2 4 7\n") + 1


def test_choices_differ_and_repeat_by_the_seed(engine_24: Engine) -> None:
    def choices(seed: int) -> list[str]:
        model = model_on(engine_24, seed=seed, temperature=1.0, num_choices=6)
        return [choice.message.text for choice in ask(model, "1 2 4 7").choices]

    assert choices(1) == choices(1) != choices(2)
    assert len(set(choices(1))) > 1


def test_limits_and_stops(engine_24: Engine) -> None:
    cut = ask(model_on(engine_24, max_tokens=5), "4 5 6 10")
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 5)
    stopped = ask(model_on(engine_24, stop_seqs=["|"]), "4 5 6 10")
    assert stopped.stop_reason == "stop" and "|" not in stopped.completion
    assert ask(model_on(engine_24), "1 2 3 4 " * 400).stop_reason == "model_length"


def test_what_it_cannot_do_is_an_error(engine_24: Engine) -> None:
    with pytest.raises(Error, match="frequency_penalty"):
        ask(model_on(engine_24, frequency_penalty=0.5), "4 5 6 10")
    schema = ResponseSchema(name="x", json_schema=JSONSchema(type="string", pattern="a(?=b)"))
    with pytest.raises(ConstraintError, match="look-ahead"):
        ask(model_on(engine_24, response_schema=schema), "4 5 6 10")


def test_tokens_are_the_models(engine_24: Engine) -> None:
    api = model_on(engine_24).api
    assert asyncio.run(api.tokenize("ok\n")) == list(engine_24.encode("ok\n", add_special=False))
    assert asyncio.run(api.count_text_tokens("ok\n")) == 3


def test_command_line_finds_the_provider(tmp_path: Path) -> None:
    """By the package's entry point, which this stands in for where it is not installed."""
    record = tmp_path / "dendrite_provider-0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: dendrite-provider\nVersion: 0\n")
    (record / "entry_points.txt").write_text("[inspect_ai]\ndendrite = dendrite.adapters.inspect\n")
    (tmp_path / "game.py").write_text(
        "from inspect_ai import Task, task\n"
        "from inspect_ai.dataset import Sample\n"
        "from inspect_ai.scorer import includes\n"
        "@task\n"
        "def game():\n"
        "    return Task([Sample(input='4 5 6 10', target='ok')], scorer=includes())\n"
    )
    offline.run(
        "inspect_ai", "eval", "game.py", "--model", f"dendrite/{MODELS / 'dendrite-24'}",
        "-M", "threads=2", "--temperature", "0", "--display", "none",
        "--log-dir", str(tmp_path / "logs"), folder=tmp_path,
    )  # fmt: skip
    [file] = (tmp_path / "logs").iterdir()
    log = read_eval_log(str(file))
    assert log.status == "success" and log.results
    assert log.results.scores[0].metrics["accuracy"].value == 1
