"""python -m dendrite, and where it finds the shipped model."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import ROOT

from dendrite import Error, _game24, _models
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
    assert main(["generate", prompt, "--model", MODEL, "--max-tokens", "16"]) == 0
    text = capsys.readouterr().out
    flags = ["generate", prompt, "--model", MODEL, "--max-tokens", "16", "--n", "2", "--json"]
    assert main(flags) == 0
    out = json.loads(capsys.readouterr().out)
    assert [branch["text"] + "\n" for branch in out["branches"]] == [text] * 2
    assert main(["info", "--model", MODEL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model_path"] == MODEL


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
