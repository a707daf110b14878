"""The examples in Python print what those in C++ print: the same tokens, values and counts."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT

EXAMPLES = ROOT / "python/examples"
MODEL = ROOT / "models/dendrite-24"
NAMES = ["fork", "score", "beam_search", "tree_of_thoughts", "mcts", "self_refinement"]
NAMES += ["successive_halving", "long_lived_agent"]


def output(*command: object) -> str:
    run = subprocess.run([*map(str, command), MODEL], capture_output=True, text=True, check=True)
    return re.sub(r"^[\d.e+]+ ns a fork$", "ns a fork", run.stdout, flags=re.M)


@pytest.mark.parametrize("name", NAMES)
def test_an_example(name: str) -> None:
    ours = output(sys.executable, EXAMPLES / f"{name}.py")
    assert ours
    program = pathlib.Path(os.environ.get("DENDRITE_EXAMPLES_DIR", "/none")) / f"example_{name}"
    if not program.exists():
        pytest.skip(f"DENDRITE_EXAMPLES_DIR has no {program.name}")
    assert ours == output(program)


def test_examples_are_short() -> None:
    for name in NAMES:
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 60, name
