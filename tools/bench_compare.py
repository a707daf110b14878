#!/usr/bin/env python3
"""Fails where a run is worse than what is kept: for nights.

  tools/bench_compare.py ratios RUN.jsonl...       ratios of times of one run, which hold on any machine, beside those of the
                                                   samples in bench/results/ of the same bench, row, parameters, kernels, threads
  tools/bench_compare.py thresholds RUN.jsonl...   shares of right answers beside bench/thresholds.json

A ratio has become worse where its whole 95 % interval is beyond the kept one by more than TOLERANCE. Exit status: 0
nothing is worse; 1 something is, or has nothing to be compared with; 2 wrong usage. Standard library only.
"""
import json
import pathlib
import sys
from typing import Any

from bench_samples import RESULTS, ROOT, Interval, Series, find, number, ratio, read, rows_of

TOLERANCE = 0.15
THRESHOLDS = ROOT / "bench/thresholds.json"
# bench, row over row: more is better
GAINS = [("tree-vs-linear", "radix", "tree"), ("tree-vs-linear", "reprefill", "tree"), ("mcts", "reprefill", "tree"),
         ("constraint", "token, unconstrained", "token, constrained")]


def runs_of(paths: list[str]) -> list[Series]:
    lines = [(line, path) for path in paths for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]
    return [series for line, path in lines for series in rows_of(json.loads(line), path)]


def key_of(s: Series, name: str) -> str:
    return f"{s.bench}, {name}, {s.model}, {s.setup.get('kernels')}, {s.setup.get('threads')} threads, {json.dumps(s.params)}"


def gains(series: list[Series]) -> dict[str, Interval]:
    """Ratios of which more is better, by what they are of; of the newest run (the first) of each."""
    found: dict[str, Interval] = {}
    for s in series:
        if s.side != "dendrite" or not s.samples:
            continue
        same = [other for other in series if (other.date, other.command, other.model) == (s.date, s.command, s.model)]
        for bench, over, under in GAINS:
            if (s.bench, s.name) == (bench, under):
                rival = find(same, bench, over, "dendrite", s.model, s.device, **s.params)
                if rival and rival.samples:
                    found.setdefault(key_of(s, f"{over} / {under}"), ratio(rival.samples, s.samples))
        if (s.bench, s.name) == ("speculate", "speedup"):
            found.setdefault(key_of(s, s.name), ratio(s.samples, [1.0]))
        if (s.bench, s.name) == ("fork-overhead", "fork") and s.params.get("tokens") == 131072:
            short = find(same, s.bench, s.name, "dendrite", s.model, s.device, tokens=16, depth=s.params["depth"])
            if short:
                found.setdefault(key_of(s, "a short fork / a long one"), ratio(short.samples, s.samples))
    return found


def worse_ratios(now: list[Series], kept: list[Series]) -> list[str]:
    """A line for each that is worse or that nothing is kept of; prints all."""
    before, out = gains(kept), []
    measured = gains(now)
    for key, found in measured.items():
        if key not in before:
            out.append(f"MISSING: {key}: {number(found.value)}x; no samples are kept of it, so nothing tells whether it is worse; "
                       "expected them in bench/results/ (a run of a commit that is good is kept by copying its file there)")
            continue
        least = before[key].value * (1 - TOLERANCE)
        line = f"{key}: {number(found.value)}x [{number(found.low)}, {number(found.high)}]; kept {number(before[key].value)}x"
        print(line)
        if found.high < least:
            out.append(f"WORSE: {line}; expected {number(least)}x or more")
    return out if measured else ["MISSING: got rows without a ratio that is compared; expected some of the benches of bench/nightly.sh"]


def below_thresholds(now: list[Series], thresholds: list[dict[str, Any]]) -> list[str]:
    out = []
    for want in thresholds:
        found = find((s for s in now if "trials" in s.row), want["bench"], want["name"], "dendrite", want["model"],
                     **want["params"])
        what = f"{want['bench']}, {want['name']}, {json.dumps(want['params'])}"
        if found is None:
            out.append(f"MISSING: {what}: was not measured; expected {want['least']} or more")
            continue
        share = found.row["median"]
        print(f"{what}: {share:.3f}; expected {want['least']} or more")
        if share < want["least"]:
            out.append(f"WORSE: {what}: {share:.3f}; expected {want['least']} or more")
    return out


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] not in ("ratios", "thresholds"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    now = runs_of(sys.argv[2:])
    if sys.argv[1] == "ratios":
        wrong = worse_ratios(now, read(RESULTS))
    else:
        wrong = below_thresholds(now, json.loads(THRESHOLDS.read_text(encoding="utf-8")))
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
