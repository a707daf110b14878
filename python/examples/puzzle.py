"""The rules of the Game of 24 as the shipped model writes it: what a search needs to know."""

import re

STEP = re.compile(r"(\d+)([-+*/])(\d+)=(\d+) \|((?: \d+)*)")


def after_step(numbers: list[int], step: str) -> list[int] | None:
    """The numbers after a step like "10-4=6 | 5 6 6"; None if it does not follow from them."""
    parsed = STEP.fullmatch(step)
    if parsed is None:
        return None
    left, right, result = int(parsed[1]), int(parsed[3]), int(parsed[4])
    rest = list(numbers)
    for used in (left, right):
        if used not in rest:
            return None
        rest.remove(used)
    computed = {
        "+": left + right == result,
        "-": left - right == result,
        "*": left * right == result,
        "/": right > 0 and result * right == left,
    }
    rest.append(result)
    written = [int(number) for number in parsed[5].split()]
    return sorted(rest) if computed[parsed[2]] and sorted(written) == sorted(rest) else None


def after_steps(numbers: list[int], text: str) -> list[int] | None:
    """The numbers after all lines of `text`; None if one of them is not legal."""
    left: list[int] | None = sorted(numbers)
    for line in text.splitlines():
        left = after_step(left, line) if left is not None else None
    return left
