"""Writes texts that dendrite-24 has not seen, one of each held-out puzzle: a header of mode S, and one of its
solutions, drawn uniformly, to foretell. What `dendrite perplexity` and `dendrite quantize` measure with.

    heldout_texts.py MODELS/dendrite-24 > MODELS/dendrite-24/heldout.jsonl

Standard library only.
"""

import functools
import json
import pathlib
import random
import sys

import puzzle


@functools.cache
def solutions(numbers, target):
    """How many ways of lines there are from sorted numbers to the target."""
    if len(numbers) == 1:
        return int(numbers[0] == target)
    return sum(solutions(after, target) for after in puzzle.legal_lines(numbers).values())


def text_of(numbers, target, rng):
    text = ""
    while len(numbers) > 1:
        moves = puzzle.legal_lines(numbers)
        line = rng.choices(list(moves), [solutions(after, target) for after in moves.values()])[0]
        text += line + "\n"
        numbers = moves[line]
    return text + "ok\n"


def main():
    model = pathlib.Path(sys.argv[1])
    puzzles = puzzle.read_games(model / "game24_heldout.txt")
    for count in (3, 4, 5):
        puzzles += puzzle.read_countdown(model / f"countdown{count}_heldout.txt")
    rng = random.Random(24)
    for numbers, target in puzzles:
        header = f"S {target}: {' '.join(map(str, numbers))}\n"
        print(json.dumps({"prompt": header, "text": text_of(numbers, target, rng)}))


if __name__ == "__main__":
    main()
