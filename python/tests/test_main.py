"""python -m dendrite, and where it finds the shipped model."""

from __future__ import annotations

import io
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from conftest import ROOT

from dendrite import Engine, Error, Session, _game24, _models
from dendrite.__main__ import main

MODEL = str(ROOT / "models/dendrite-24")


def test_solve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "10", "4", "5", "6", "--model", MODEL]) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 5 6 10 -> 24\n  + ")
    expression = next(line for line in out.splitlines() if line.endswith(" = 24"))
    assert eval(expression.split(" = ")[0]) == 24


def test_solve_is_the_search_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["solve", "4", "5", "6", "10", "--json", "--seed", "2", "--model", MODEL]
    assert main(flags) == 0
    ours = json.loads(capsys.readouterr().out)
    assert ours["reason"] == "solved" and eval(ours["solution"]) == 24
    program = pathlib.Path(os.environ.get("DENDRITE_EXAMPLES_DIR", "/none")) / "dendrite"
    if not program.exists():
        pytest.skip("DENDRITE_EXAMPLES_DIR has no program dendrite")
    theirs = json.loads(subprocess.run([program, *flags], capture_output=True, check=True).stdout)
    for name in ("numbers", "target", "solution", "steps", "branch", "reason"):
        assert ours[name] == theirs[name], name
    for name in ("tokens_computed", "tokens_independent", "forks", "steps"):
        assert ours["stats"][name] == theirs["stats"][name], name


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", "4", "5", "6", "1000", "--model", MODEL]) == 1
    assert capsys.readouterr().err == ("dendrite: solve: got the number 1000; expected 1 to 999\n")
    assert main(["info", "--model", "/none"]) == 1
    assert capsys.readouterr().err.startswith("dendrite: ")


def test_generate_and_info(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = "S 24: 4 5 6 10\n"
    assert main(["generate", "--prompt", prompt, "--model", MODEL, "--max-tokens", "16"]) == 0
    text = capsys.readouterr().out
    flags = ["generate", "--prompt", prompt, "--model", MODEL, "--max-tokens", "16"]
    flags += ["--n", "2", "--json", "--top-logprobs", "2"]
    assert main(flags) == 0
    out = json.loads(capsys.readouterr().out)
    assert [branch["text"] + "\n" for branch in out["branches"]] == [text] * 2
    assert main(["info", "--model", MODEL, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    model = told["model"]
    assert model["path"] == MODEL
    assert told["compatibility"]["verdict"] == "compatible"
    assert [one["format"] for one in model["stored"]] == ["bf16"]
    assert model["stored"][0]["parameters"] == model["parameters"]
    assert model["stored"][0]["bits_per_weight"] == model["bits_per_weight"] == 16
    assert main(["info", "--model", MODEL]) == 0
    assert " parameters, 16.00 bits each\n" in capsys.readouterr().out


@pytest.mark.parametrize("strategy", ["greedy", "beam", "best-of-n", "mcts"])
def test_every_strategy_solves(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["solve", "4", "6", "--json", "--strategy", strategy, "--width", "8", "--seed", "1"]
    assert main([*flags, "--model", MODEL]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["reason"] == "solved" and out["solution"] in ("4*6", "6*4")
    assert [step["text"] for step in out["steps"]] == ["6*4=24 | 24"]
    assert out["greedy"] == {"text": "6*4", "solved": True}


def test_generate_says_what_programs_rely_on(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    flags = ["generate", "--model", MODEL, "--json", "--max-tokens", "8", "--top-logprobs", "2"]
    assert main([*flags, "--prompt", "S 24: 4 6\n"]) == 0
    out = json.loads(capsys.readouterr().out)
    (branch,) = out["branches"]
    assert branch["finish"] in ("length", "eos", "stop")
    assert [chosen["id"] for chosen in branch["logprobs"]] == branch["ids"]
    first = branch["logprobs"][0]
    assert first["top"][0] == [first["id"], first["logprob"]] and len(first["top"]) == 2
    assert out["stats"]["seconds"] > 0 and out["stats"]["tokens_generated"] == len(branch["ids"])
    ids = ",".join(map(str, out["prompt_ids"]))
    assert main([*flags, "--prompt-ids", ids]) == 0
    assert json.loads(capsys.readouterr().out)["branches"] == out["branches"]
    assert main([*flags, "--prompt", "S 24: 4 6\n", "--regex", "[0-9]{3}"]) == 0
    (branch,) = json.loads(capsys.readouterr().out)["branches"]
    assert branch["finish"] == "stop" and branch["text"].isdigit() and len(branch["text"]) == 3
    messages = tmp_path / "messages.json"
    messages.write_text('[{"role": "user", "content": "Will it rain in Rome today?"}]')
    model = str(ROOT / "models/dendrite-tools")
    assert main([*flags, "--messages", str(messages), "--model", model]) == 0
    out = json.loads(capsys.readouterr().out)
    with Engine(model, weights=False) as engine:
        rendered = engine.render_chat(json.loads(messages.read_text()))
        assert out["prompt_ids"] == engine.encode(rendered, add_special=False).tolist()


def test_generate_goes_on_where_it_was_saved(
    capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    flags = ["generate", "--model", MODEL, "--json", "--temperature", "1", "--ignore-eos"]
    start = [*flags, "--prompt", "S 24: 4 6\n", "--n", "2", "--seed", "5", "--regex", "[0-9]{30}"]

    def ids(*more: str) -> list[list[int]]:
        assert main([*more]) == 0
        return [one["ids"] for one in json.loads(capsys.readouterr().out)["branches"]]

    whole = ids(*start, "--max-tokens", "20")
    file = str(tmp_path / "tree.snap")
    first = ids(*start, "--max-tokens", "8", "--save", file)
    rest = ids(*flags, "--max-tokens", "12", "--resume", file)
    assert [a + b for a, b in zip(first, rest, strict=True)] == whole
    assert main(["generate", "--model", MODEL, "--resume", str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err


TOOLS = str(ROOT / "models/dendrite-tools")
ROME = "Will it rain in Rome today?"


def say(monkeypatch: pytest.MonkeyPatch, *lines: str, flags: tuple[str, ...] = ()) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
    return main(["chat", "--model", TOOLS, "--temperature", "0", *flags])


def test_chat(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    file = str(tmp_path / "chat.snap")
    lines = (ROME, "/fork", "/back 1", "/branches", "/save " + file, "/help", "/quit", "unsaid")
    assert say(monkeypatch, *lines) == 0
    answer, forked, left, first, second, saved, *rest = capsys.readouterr().out.splitlines()
    with Engine(TOOLS) as engine, engine.session() as session:
        messages = [{"role": "user", "content": ROME}]
        wanted = session.generate(messages, temperature=0, max_tokens=256)
        assert answer == wanted.text
    assert (forked, left) == ("now in conversation 2", "0 messages left")
    assert first.startswith("  1: 2 messages, ") and second.startswith("* 2: 0 messages, ")
    assert saved == f"saved 2 conversations to {file}" and "/quit" in rest[-1]

    assert say(monkeypatch, "/branches", ROME, "/branch 1", "/back", ROME,
               flags=("--resume", file)) == 0  # fmt: skip
    again = capsys.readouterr().out.splitlines()
    assert again == [first, second, answer, "0 messages left", answer]
    assert main(["generate", "--model", TOOLS, "--prompt", "a", "--save", file]) == 0
    assert say(monkeypatch, flags=("--resume", file)) == 1
    assert "holds no conversation; expected a file that /save" in capsys.readouterr().err


def test_an_interrupt_ends_the_answer_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, interrupted = Session.stream, iter([True, False])

    def streams(*arguments: Any, **fields: Any) -> Any:
        steps = stream(*arguments, **fields)
        yield next(steps)
        if next(interrupted):
            raise KeyboardInterrupt
        yield from steps

    monkeypatch.setattr(Session, "stream", streams)
    assert say(monkeypatch, ROME, "/back", ROME) == 0
    cut, left, answer = capsys.readouterr().out.splitlines()
    assert left == "0 messages left" and answer.startswith(cut) and len(cut) < len(answer)


def test_what_cannot_be_said_to_a_chat(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    assert say(monkeypatch, "long " * 400, ROME) == 0
    told = capsys.readouterr()
    assert told.err.startswith("no answer: prefill: ") and len(told.out.splitlines()) == 1
    messages = tmp_path / "messages.json"
    messages.write_text(json.dumps([{"role": "user", "content": ROME}]))
    flags = ("--render", "--json", "--messages", str(messages))
    assert say(monkeypatch, flags=flags) == 0
    rendered = json.loads(capsys.readouterr().out)
    assert ROME in rendered["text"] and rendered["ids"]
    assert say(monkeypatch, flags=("--render",)) == 1


def test_score(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["score", "--model", MODEL, "--prompt", "P 24: 4 6\n6*4=24 | 24\n?"]
    flags += ["--continuation", "s", "--continuation-ids", "105,10"]
    assert main([*flags, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert [len(score["tokens"]) for score in scores] == [1, 2]
    assert scores[0]["logprob"] == scores[0]["tokens"][0]
    assert main(flags) == 0
    assert [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()] == ["s", "105,10"]
    assert main(["score", "--model", MODEL, "--prompt", "a"]) == 1
    assert "nothing to score; expected --continuation" in capsys.readouterr().err


def test_traces_are_pages(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    trace = tmp_path / "search.jsonl"
    assert main(["solve", "4", "6", "--trace", str(trace), "--model", MODEL]) == 0
    capsys.readouterr()
    assert main(["trace", "view", str(trace)]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'search.html'}: ")
    page = (tmp_path / "search.html").read_text()
    assert "6*4=24 | 24" in page and "@TRACE@" not in page
    assert main(["trace", "view", str(trace), "--out", str(trace)]) == 1
    (tmp_path / "other").write_text("text")
    assert main(["trace", "view", str(tmp_path / "other")]) == 1
    assert "expected a trace" in capsys.readouterr().err


def test_text_and_ids(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(stdin: str, *flags: str) -> dict[str, object]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        assert main(["tokenize", "--json", "--model", MODEL, *flags]) == 0
        made: dict[str, object] = json.loads(capsys.readouterr().out)
        return made

    there = run("S 24: 4 6\n", "--no-special")
    assert there["text"] == "S 24: 4 6\n"
    assert isinstance(there["ids"], list)
    assert run(" ".join(map(str, there["ids"])), "--decode") == there


@pytest.mark.parametrize(
    "command", ["", "solve", "chat", "generate", "score", "info", "trace", "trace view"]
)
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    if command in ("", "generate", "score"):
        assert "  python -m dendrite " in text or "  dendrite " in text  # examples
    assert "{prog}" not in text


def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    both = ["generate", "--json-object", "--regex", "a"]
    resumed = ["generate", "--resume", "x", "--n", "2"]
    for flags in (["solve"], ["generate", "--n", "0"], both, resumed):
        with pytest.raises(SystemExit) as end:
            main(flags)
        assert end.value.code == 2
    assert main([]) == 2
    assert capsys.readouterr().out.startswith("usage: ")


def test_help_runs_as_a_module() -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "dendrite", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert "python -m dendrite solve 4 5 6 10" in help_text
    assert "session.decode(root.fork(8)" in help_text


def test_models_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    assert _models.find("dendrite-24") == MODEL  # the source tree
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.setenv("DENDRITE_MODELS", str(tmp_path))
    assert _models.find("mine") == str(tmp_path / "mine")
    with pytest.raises(Error, match="other was not found in .*; expected a folder other") as error:
        _models.find("other")
    assert str(tmp_path) in str(error.value) and str(pathlib.Path.cwd() / "models") in str(
        error.value
    )


def test_the_rules() -> None:
    assert _game24.next_state([4, 5, 6, 10], "10-4=6 | 5 6 6") == [5, 6, 6]
    assert _game24.next_state([4, 5, 6, 10], "10/5=2 | 2 4 6") == [2, 4, 6]
    for wrong in ("4-10=6 | 5 6 6", "10-4=6 | 6 5 6", "10-4=7 | 5 6 7", "10/4=2 | 2 5 6", "10-4=6"):
        assert _game24.next_state([4, 5, 6, 10], wrong) is None, wrong
    steps = ["10-4=6 | 5 6 6", "6*5=30 | 6 30", "30-6=24 | 24"]
    assert _game24.expression([4, 5, 6, 10], steps) in ("(10-4)*5-6", "6*5-(10-4)")
    with pytest.raises(Error, match="got 1 numbers; expected 2 to 5"):
        _game24.check_numbers([1], 24)
