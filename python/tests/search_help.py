"""What tests of searches share: the Game of 24 in Python callables."""

from __future__ import annotations

import dataclasses
from typing import Any

from dendrite import Branch, Steps, _game24

NUMBERS = [4, 5, 6, 10]
PROPOSE = "P 24: 4 5 6 10\n"
SOLVE = "S 24: 4 5 6 10\n"


def is_legal(branch: Branch, step: str) -> bool:
    return _game24.state_after(NUMBERS, branch.text) is not None


def is_solution(branch: Branch, text: str) -> bool:
    return _game24.state_after(NUMBERS, branch.text.replace("ok", "").rstrip() + "\n") == [24]


def steps(**fields: Any) -> Steps:
    """The shipped model's steps; `judge` and `propose` are Python."""
    made = _game24.tree_of_thoughts(NUMBERS, 24, 5).steps
    return dataclasses.replace(made, **fields)
