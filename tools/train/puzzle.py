"""The rules in Python: reads what the model writes, and checks it. Standard library only.

Slow and plain beside puzzle.h; the tests hold the two against each other.
"""

import functools
import math

MAX_RESULT = 999


def legal_lines(numbers):
    """Every legal line of a sorted tuple of numbers, in canonical order: {line without newline: numbers after it}."""
    lines = {}
    for i, small in enumerate(numbers):
        for j in range(i + 1, len(numbers)):
            large = numbers[j]
            rest = numbers[:i] + numbers[i + 1:j] + numbers[j + 1:]
            results = {"+": large + small, "-": large - small, "*": large * small}
            if large % small == 0:
                results["/"] = large // small
            for op, result in results.items():
                if 1 <= result <= MAX_RESULT:
                    after = tuple(sorted(rest + (result,)))
                    lines[f"{large}{op}{small}={result} | {' '.join(map(str, after))}"] = after
    return lines


@functools.lru_cache(maxsize=1 << 20)
def solvable(numbers, target):
    if len(numbers) == 1:
        return numbers[0] == target
    return any(solvable(after, target) for after in set(legal_lines(numbers).values()))


def parse_header(line):
    """("S", 24, (4, 5, 6, 10)) of "S 24: 4 5 6 10"."""
    mode, rest = line.split(" ", 1)
    target, numbers = rest.split(":")
    return mode, int(target), tuple(int(n) for n in numbers.split())


def follow(numbers, lines):
    """Numbers after `lines`, and how many of the lines are legal; stops at the first that is not."""
    for count, line in enumerate(lines):
        moves = legal_lines(numbers)
        if line not in moves:
            return numbers, count
        numbers = moves[line]
    return numbers, len(lines)


def is_solution(numbers, target, text):
    """Whether `text`, what follows the header, begins with a complete legal solution."""
    lines = text.split("\n")[:len(numbers) - 1]
    after, legal = follow(numbers, lines)
    return legal == len(numbers) - 1 and after == (target,)


def mix64(x):
    mask = (1 << 64) - 1
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & mask
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & mask
    return x ^ x >> 33


def held_out(numbers, target):
    """See puzzle.h: decides from the puzzle alone whether it may be the root of a training document."""
    key = len(numbers)
    for n in numbers:
        key = key * 1000 + n
    return mix64(key * 1009 + target & (1 << 64) - 1) % (5 if len(numbers) == 4 and target == 24 else 50) == 0


def listed_lines(path):
    """Lines of a list of puzzles, without its comments."""
    with open(path) as file:
        return [line for line in file if not line.startswith("#")]


def read_games(path):
    """The solvable puzzles of game24_heldout.txt: a list of (numbers, 24)."""
    rows = [[int(n) for n in line.split()] for line in listed_lines(path)]
    return [(tuple(numbers), 24) for flag, *numbers in rows if flag]


def read_countdown(path):
    """The puzzles of countdown*_heldout.txt: a list of (numbers, target)."""
    headers = [parse_header("S " + line) for line in listed_lines(path)]
    return [(numbers, target) for _, target, numbers in headers]


def wilson(successes, trials, z=1.959964):
    """95 % interval of a proportion, in percent: (estimate, low, high)."""
    if trials == 0:
        return 0.0, 0.0, 100.0
    p = successes / trials
    centre = p + z * z / (2 * trials)
    spread = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return 100 * p, max(0.0, 100 * (centre - spread) / scale), min(100.0, 100 * (centre + spread) / scale)
