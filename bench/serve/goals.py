#!/usr/bin/env python3
"""What bench/serve.sh found, a line for each number of streams, and the goals on a GPU.

  bench/serve/goals.py FOLDER

Goals: one stream's first token within 10 ms (of a prompt whose shared tokens are known, or of one of 128), its gap at most
0.2 ms above the library's step; beside another server's throughput 1.3 times where prompts share a prefix, as much where
they share nothing.
"""
from __future__ import annotations

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import bench_samples as samples  # noqa: E402

FIRST_MS, OVER_STEP_MS, SHARED_RATIO, OWN_RATIO = 10.0, 0.2, 1.3, 1.0


def step_of(series: list[samples.Series], ours: samples.Series) -> samples.Series | None:
    """The library's step at the same work: of branches with a common prompt, or of calls that share nothing."""
    p = ours.params
    if p["shared"]:
        return samples.find(series, "decode", "step", "dendrite", ours.model, branches=p["streams"], prompt_length=p["shared"])
    for mode in ("one-call", "joined"):
        found = samples.find(series, "agents", f"{mode}, gap", "dendrite", ours.model, agents=p["streams"], prompt_length=p["own"])
        if found:
            return found
    return None


def verdict(value: float, bound: float, most: bool) -> str:
    return "holds" if (value <= bound if most else value >= bound) else "MISSED"


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    series = samples.read(pathlib.Path(sys.argv[1]))
    said, seen = [], set()
    print("| shared | streams | side | first token p50, p99, ms | gap p50, p99 | library's step | tok/s | errors |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for ours in series:
        key = (ours.params.get("shared"), ours.params.get("streams"))
        if ours.bench != "serve" or ours.name != "first token" or ours.side != "dendrite" or key in seen:
            continue
        seen.add(key)
        step = step_of(series, ours)
        sides = [ours] + [each for each in series if each.bench == "serve" and each.name == "first token" and
                          each.side != "dendrite" and each.params == ours.params and each.date == ours.date]
        rates = {}
        for side in sides:
            rows = {each.name: each for each in series if (each.side, each.date, each.bench) == (side.side, side.date, "serve")
                    and each.params == ours.params}
            if not all(rows[name].samples for name in ("first token", "gap", "throughput")):
                said.append(f"{side.side}, {key[1]} streams of {key[0]} shared tokens: no answers")
                continue
            first, gap, rates[side.side] = rows["first token"], rows["gap"], rows["throughput"].median
            print(f"| {key[0]} | {key[1]} | {side.side} | {first.median:.2f}, {first.row['p99']:.2f} | {gap.median:.3f}, "
                  f"{gap.row['p99']:.3f} | {f'{step.median:.3f}' if step and side is ours else ''} | "
                  f"{rates[side.side]:,.0f} | {rows['errors'].row['count']} |")
            if side is ours and key[1] == 1:
                said.append(f"first token of one stream, {key[0]} shared: {first.median:.2f} ms; at most {FIRST_MS}: "
                            f"{verdict(first.median, FIRST_MS, True)}")
                if step:
                    over = gap.median - step.median
                    said.append(f"gap of one stream above the library's step, {key[0]} shared: {over:.3f} ms; at most "
                                f"{OVER_STEP_MS}: {verdict(over, OVER_STEP_MS, True)}")
        bound = SHARED_RATIO if key[0] else OWN_RATIO
        said += [f"throughput of {key[1]} streams, {key[0]} shared, by {name}: {rates['dendrite'] / rate:.2f}x; at least {bound}: "
                 f"{verdict(rates['dendrite'] / rate, bound, False)}" for name, rate in rates.items()
                 if name != "dendrite" and "dendrite" in rates]
    print("\n".join(["", *said]))


if __name__ == "__main__":
    main()
