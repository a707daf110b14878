#!/usr/bin/env python3
"""What Python costs on top of C++: forks, calls and steps, in microseconds.

    PYTHONPATH=python bench/python_overhead.py [--model FOLDER] [--json FILE] [--check]

A step from Python: `decode` called once a token, less a step of one long `decode`, which makes them
without Python; alternating pairs on a tiny model, whose own steps are short. What is left is all of
one call: C++'s and Python's. --check: exit status 1 where the goals are missed.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
import timeit
from collections.abc import Callable

from dendrite import DecodeParams, Engine, Session

ROOT = pathlib.Path(__file__).resolve().parents[1]
GOALS = {"fork_us": 0.3, "step_us": 5.0, "streamed_step_us": 5.0}


def best_us(function: Callable[[], object], count: int = 20000) -> float:
    """The fastest of seven runs, less an empty call."""
    runs = [min(timeit.repeat(what, number=count, repeat=7)) for what in (function, lambda: None)]
    return (runs[0] - runs[1]) / count * 1e6


def seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def step_us(session: Session, tokens: list[int], pairs: int, streamed: bool) -> float:
    """The median of what a step costs more than one inside of a long call."""
    steps = 16
    root = session.prefill(tokens)
    one = DecodeParams(max_tokens=1, ignore_eos=True)
    many = DecodeParams(max_tokens=steps, ignore_eos=True)
    costs = []

    def single(branch: object) -> None:
        for _ in range(steps):
            session.decode(branch, one)  # type: ignore[call-overload]

    for _ in range(pairs):
        inner, outer = root.fork(), root.fork()
        without = seconds(lambda: session.decode(inner, many))  # noqa: B023
        if streamed:
            with_ = seconds(lambda: list(session.stream(outer, many)))  # noqa: B023
        else:
            with_ = seconds(lambda: single(outer))  # noqa: B023
        costs.append((with_ - without) / steps * 1e6)
    return statistics.median(costs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=str(ROOT / "tests/data/models/tinyllama"))
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--json", help="also write the numbers to this file")
    parser.add_argument("--check", action="store_true", help="fail where a goal is missed")
    options = parser.parse_args()
    with Engine(options.model, threads=1, kv_tokens=65536) as engine, engine.session() as session:
        tokens = list(range(3, 40))
        root = session.prefill(tokens)
        none = DecodeParams(max_tokens=0)
        found = {
            "fork_us": best_us(root.fork),
            "call_without_steps_us": best_us(lambda: session.decode(root, none)),
            "call_with_keywords_us": best_us(
                lambda: session.decode(root, max_tokens=0, stop_tokens=[1])
            ),
            "step_us": step_us(session, tokens, options.pairs, streamed=False),
            "streamed_step_us": step_us(session, tokens, options.pairs, streamed=True),
        }
    missed = [name for name, goal in GOALS.items() if found[name] > goal]
    for name, value in found.items():
        goal = f"  (goal {GOALS[name]})" if name in GOALS else ""
        print(f"{name:24} {value:8.3f}{goal}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if missed and options.check:
        print("missed:", ", ".join(missed), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
