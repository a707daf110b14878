#!/usr/bin/env python3
"""Both sides of every row, and the ratio with its 95 % bootstrap interval, from raw samples.

  bench/peers/vllm/compare.py [FOLDER]      FOLDER: of *.jsonl files (default: bench/results)

A ratio above 1 says that Dendrite is faster. Also for the peers that the other benches ran.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools"))
import bench_samples as samples  # noqa: E402


def main() -> None:
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    series = samples.read(pathlib.Path(sys.argv[1]) if len(sys.argv) == 2 else samples.RESULTS)
    sides = sorted({s.side for s in series if not s.side.startswith("dendrite")})
    seen = set()
    for ours in series:
        key = (ours.bench, ours.name, ours.model, ours.device, str(ours.params))
        if ours.side != "dendrite" or not ours.samples or key in seen:
            continue
        seen.add(key)
        for side in sides:
            theirs = samples.partner(series, ours, side)
            if theirs is None:
                continue
            params = " ".join(f"{name}={value}" for name, value in ours.params.items())
            machines = "one machine" if samples.same_machine(ours, theirs) else "two machines"
            print(f"{ours.model} {ours.bench} {ours.name} {params}: {samples.number(ours.median)} {ours.unit} "
                  f"({len(ours.samples)} trials); {side} {samples.number(theirs.median)} ({len(theirs.samples)}); "
                  f"{samples.times(samples.ratio(theirs.samples, ours.samples))}; {machines}")


if __name__ == "__main__":
    main()
