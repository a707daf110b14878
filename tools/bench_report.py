#!/usr/bin/env python3
"""Writes what README.md, CHANGELOG.md and bench/RESULTS.md say of speed, and their charts, from bench/results/*.jsonl.

  tools/bench_report.py            writes the text between `<!-- bench:NAME -->` and `<!-- /bench -->`, and the charts
  tools/bench_report.py --check    exit status 1 and a line a file where that would change something

What stands between the markers is never typed by hand: bench_blocks.py says what it is. Rows of fewer than 16 trials are
not shown, nothing is divided across two machines, and a run of sources that are in no commit of the history is an error
(in a shallow clone, or without git, it says that it cannot look). Intervals are bootstrapped with a fixed seed, so the same
samples give the same text. Standard library only.
"""
import argparse
import pathlib
import re
import sys

import bench_blocks as blocks
import bench_charts as charts
import plot_game24
from bench_commits import Commits
from bench_samples import LEAST_TRIALS, ROOT, Series, median_interval, partner, ratio, read

PAGES = ["README.md", "CHANGELOG.md", "bench/RESULTS.md"]
CHARTS = "docs/bench"
BLOCK = re.compile(r"(<!-- bench:([\w.-]+) -->\n)(.*?)(<!-- /bench -->)", re.S)


def page(text: str, series: list[Series], name: str) -> str:
    def fill(match: re.Match[str]) -> str:
        write = blocks.BLOCKS.get(match[2])
        if write is None:
            sys.exit(f"{name}: block is bench:{match[2]}; expected one of {', '.join(blocks.BLOCKS)}")
        text = write(series)
        return f"{match[1]}{text}\n{match[4]}" if text else match[1] + match[4]

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
        steps, searches = ([group for group in vllm_groups(series, model, unit) if kind in group[0]]
                           for (_, kind), unit in zip(blocks.CHARTED, ("ms", "s")))
        for (what, _), unit, groups in zip(blocks.CHARTED, ("ms a step", "s a search"), (steps, searches)):
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
    if titles:
        out["docs/game24.svg"] = plot_game24.draw(titles)
    return out


def leftovers(root: pathlib.Path, wanted: dict[str, str]) -> list[pathlib.Path]:
    """Charts that nothing gives any more."""
    drawn = [*sorted((root / CHARTS).glob("*.svg")), root / "docs/game24.svg"]
    return [path for path in drawn if path.exists() and str(path.relative_to(root)) not in wanted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where something would change")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="of the tree (for tests)")
    options = parser.parse_args()
    measured = read(options.root / "bench/results")
    commits = Commits(options.root)
    faults = commits.faults(measured)
    if faults:
        sys.exit("\n".join(faults))
    if commits.note():
        print(commits.note(), file=sys.stderr)
    series = [s for s in measured if s.is_shown]
    wanted = {name: page((options.root / name).read_text(encoding="utf-8"), series, name) for name in PAGES}
    wanted |= drawings(series)
    stale = 0
    for path in leftovers(options.root, wanted):
        stale += 1
        if options.check:
            print(f"{path.relative_to(options.root)}: no samples give it; expected the output of `make bench-report`")
        else:
            path.unlink()
            print(f"{path.relative_to(options.root)}: removed")
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
    few = len(measured) - len(series)
    if few and not options.check:
        print(f"{few} rows of fewer than {LEAST_TRIALS} trials are not shown")
    sys.exit(1 if options.check and stale else 0)


if __name__ == "__main__":
    main()
