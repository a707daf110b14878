"""Puzzles of models/dendrite-24, and an exact checker of its moves."""

import math
import re
from pathlib import Path

MODELS = Path(__file__).parents[3] / "models"

_MOVE = re.compile(r"(\d+)([-+*/])(\d+)=(\d+) \| ([\d ]+)")


def puzzles(count):
    """Solvable games that the model has not seen in training: tuples of four numbers, sorted."""
    lines = (MODELS / "dendrite-24/game24_heldout.txt").read_text().splitlines()
    rows = [[int(word) for word in line.split()] for line in lines if not line.startswith("#")]
    return [tuple(row[1:]) for row in rows if row[0] == 1][:: len(rows) // count // 2][:count]


def prompt(numbers, mode="P"):
    """Asks the model to propose a move, or in mode "S" for a solution."""
    return f"{mode} 24: " + " ".join(map(str, numbers)) + "\n"


def after(numbers, move):
    """The numbers left after a move, "10-4=6 | 5 6 6"; None where it is not legal."""
    match = _MOVE.fullmatch(move)
    if match is None:
        return None
    left, op, right, result = match[1], match[2], match[3], int(match[4])
    a, b = int(left), int(right)
    rest = list(numbers)
    try:
        rest.remove(a)
        rest.remove(b)
    except ValueError:
        return None
    exact = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b and a % b == 0 else None}
    rest = tuple(sorted([*rest, result]))
    return rest if exact[op] == result and rest == tuple(map(int, match[5].split())) else None


def left_of(numbers, text):
    """The numbers left after all moves of a text, one a line; None where one is not legal."""
    for move in text.splitlines():
        if numbers is not None:
            numbers = after(numbers, move)
    return numbers


def probability(first, second):
    """Of the first of two alternatives, by their log-probabilities."""
    return 1 / (1 + math.exp(second - first))
