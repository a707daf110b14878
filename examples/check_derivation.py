#!/usr/bin/env python3
"""Tests a program in the toy language of the shipped model: a derivation of a number.

    check_derivation.py FILE

    S 24: 4 5 6 10        reach 24 from these numbers
    10-4=6 | 5 6 6        larger op smaller = result | the numbers left, ascending
    6*5=30 | 6 30
    30-6=24 | 24
    ok                    may be left out

Exit status 0: it derives the target. 1: it does not, and the output is `line N: why`.
"""
import re
import sys

STEP = re.compile(r"([1-9]\d{0,2})([-+*/])([1-9]\d{0,2})=([1-9]\d{0,2}) \|((?: [1-9]\d{0,2})+)")


def why_not(lines):
    """(number of the line, what is wrong there), or None."""
    head = re.fullmatch(r"S (\d+):((?: \d+)+)", lines[0]) if lines else None
    if not head:
        return 1, "expected `S TARGET: NUMBERS`"
    target = int(head[1])
    numbers = [int(number) for number in head[2].split()]
    if lines[-1] == "ok":
        lines = lines[:-1]
    for at, line in enumerate(lines[1:], start=2):
        step = STEP.fullmatch(line)
        if not step:
            return at, "expected a step, got `" + line[:40] + "`"
        left, right, result = int(step[1]), int(step[3]), int(step[4])
        rest = numbers.copy()
        for number in (left, right):
            if number not in rest:
                return at, f"there is no {number} left"
            rest.remove(number)
        if left < right:
            return at, "the larger number goes first"
        exact = {"+": left + right, "-": left - right, "*": left * right, "/": left / right}
        if exact[step[2]] != result:
            return at, f"{left}{step[2]}{right} is not {result}"
        numbers = sorted(rest + [result])
        if numbers != [int(number) for number in step[5].split()]:
            return at, "the numbers left are " + " ".join(map(str, numbers))
    if numbers != [target]:
        return len(lines), f"ends with {' '.join(map(str, numbers))}, not {target}"
    return None


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        problem = why_not(file.read().splitlines())
    if problem:
        print(f"line {problem[0]}: {problem[1]}")
        sys.exit(1)


if __name__ == "__main__":
    main()
