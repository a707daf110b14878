#!/usr/bin/env python3
"""Writes what README.md and bench/RESULTS.md say of speed, and their charts, from bench/results/*.jsonl.

  tools/bench_report.py            writes the text between `<!-- bench:NAME -->` and `<!-- /bench -->`, and the charts
  tools/bench_report.py --check    exit status 1 and a line a file where that would change something

What stands between the markers is never typed by hand: bench_blocks.py says what it is. Intervals are
bootstrapped with a fixed seed, so the same samples give the same text. Standard library only.
"""
import argparse
import pathlib
import re
import sys

import bench_blocks as blocks
import bench_charts as charts
import plot_game24
from bench_samples import ROOT, Series, median_interval, partner, ratio, read

PAGES = ["README.md", "bench/RESULTS.md"]
CHARTS = "docs/bench"
BLOCK = re.compile(r"(<!-- bench:([\w.-]+) -->\n)(.*?)(<!-- /bench -->)", re.S)


def page(text: str, series: list[Series], name: str) -> str:
    def fill(match: re.Match[str]) -> str:
        write = blocks.BLOCKS.get(match[2])
        if write is None:
            sys.exit(f"{name}: block is bench:{match[2]}; expected one of {', '.join(blocks.BLOCKS)}")
        return f"{match[1]}{write(series)}\n{match[4]}"

    return BLOCK.sub(fill, text)


def vllm_groups(series: list[Series], model: str, unit: str) -> list[charts.Group]:
    groups = []
    for workload in blocks.ALL:
        ours = blocks.on_gpu(series, workload, model)
        if ours is None or ours.unit != unit or ours.name == "ttft":
            continue
        sides = [("Dendrite", median_interval(ours.samples))]
        sides += [(mode, median_interval(theirs.samples)) for mode, side in blocks.MODES
                  if (theirs := partner(series, ours, side))]
        groups.append((workload[0].split(", with")[0], sides))
    return groups


def drawings(series: list[Series]) -> dict[str, str]:
    """The charts, by path; none where nothing was measured."""
    out = {}
    for name, model in blocks.SHAPES:
        steps = [group for group in vllm_groups(series, model, "ms") if "branch" in group[0]]
        searches = [group for group in vllm_groups(series, model, "s") if "search" in group[0]]
        for what, unit, groups in (("steps", "ms a step", steps), ("searches", "s a search", searches)):
            if groups:
                path = f"{CHARTS}/vllm-{name.lower()}-{what}.svg"
                out[path] = charts.bars(f"{name}: {unit}, lower is better", unit, groups)
    attention = [(ours.params["case"], [(way, ratio(theirs.samples, ours.samples)) for way, theirs in ways.items()])
                 for ours, ways in blocks.attention(series)]
    if attention:
        out[f"{CHARTS}/flashinfer.svg"] = charts.ratios("Attention over a tree: FlashInfer's time over Dendrite's",
                                                        attention)
    searches = [(blocks.search_label(s).split(", after")[0] + ", " + s.setup["kernels"],
                 [(name, ratio(rival.samples, s.samples))
                  for name, rival in blocks.tree_rivals(series, s).items() if rival])
                for s in blocks.tree_searches(series)]
    if searches:
        out[f"{CHARTS}/searches.svg"] = charts.ratios("Whole searches on a CPU: time over Dendrite's tree", searches)
    titles = []
    for title, name in blocks.SETS:
        rows = [s.row for s in series if s.bench == "game24" and s.params.get("set") == name]
        if rows:
            titles.append((f"{title} ({rows[0]['solvable']} held-out puzzles)", plot_game24.points(rows)))
    if len(titles) == len(blocks.SETS):  # one figure, of all of them
        out["docs/game24.svg"] = plot_game24.draw(titles)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where something would change")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="of the tree (for tests)")
    options = parser.parse_args()
    series = read(options.root / "bench/results")
    wanted = {name: page((options.root / name).read_text(encoding="utf-8"), series, name) for name in PAGES}
    wanted |= drawings(series)
    stale = 0
    for name, text in wanted.items():
        path = options.root / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if options.check:
            print(f"{name}: is not what bench/results/ gives; expected the output of `make bench-report`")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"{name}: written")
    sys.exit(1 if options.check and stale else 0)


if __name__ == "__main__":
    main()
