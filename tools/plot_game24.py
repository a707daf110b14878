#!/usr/bin/env python3
"""Draws what dendrite-bench game24 found: solved puzzles against seconds and against tokens.

  tools/plot_game24.py TITLE=RESULT.jsonl[,RESULT.jsonl...] ... > chart.svg

One row of panels a title; the results behind it were measured in parts. A line joins a strategy's
widths, which stand beside its points; bars are Wilson 95 % intervals. Standard library only.
docs/game24.svg is drawn by bench_report.py from bench/results/.
"""
import itertools
import json
import math
import sys

WIDTH, HEIGHT, LEFT, TOP, GAP = 420, 220, 56, 70, 84
COLOURS = {"greedy": "#6d6d68", "best-of-n": "#b3470a", "beam": "#7a4fb0", "tot": "#0a7a3d",
           "depth-first": "#7a8a10", "best-first": "#0a8a8a", "mcts": "#0b62a8"}
TITLES = {"tot": "Tree-of-Thoughts", "mcts": "MCTS"}


def rows_of(paths):
    return [row for path in paths for line in open(path) for row in json.loads(line)["rows"]]


def points(rows):
    """[(strategy, width, share, low, high, seconds, tokens)], each once, by strategy and width."""
    out = {}
    times = {}
    for row in rows:
        if row["unit"] == "s":
            times.setdefault((row["name"], json.dumps(row["params"])), row["median"])
    for row in rows:
        if row["unit"] != "solved":
            continue
        name, params = row["name"], row["params"]
        seconds = times[(name + " time", json.dumps(params))]
        tokens = row["tokens_computed"] / row["solvable"]
        point = (name, params.get("width", 0), row["median"], *row["ci95"], seconds, tokens)
        out.setdefault(point[:2], point)  # greedy stands in every part
    return sorted(out.values(), key=lambda point: (list(COLOURS).index(point[0]), point[1]))


def ticks(low, high):
    """1, 2 and 5 of each power of ten between them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [value for value in values if low <= value <= high]


def panel(x0, y0, data, pick, unit):
    """One plot with a logarithmic x axis."""
    low, high = min(map(pick, data)) / 1.4, max(map(pick, data)) * 1.4
    bottom = math.floor(min(point[3] for point in data) * 10) / 10
    place_x = lambda v: x0 + math.log(v / low) / math.log(high / low) * WIDTH
    place_y = lambda share: y0 + (1 - share) / (1 - bottom) * HEIGHT
    out = []
    for tenth in range(round(bottom * 10), 11):
        y = place_y(tenth / 10)
        out.append(f'<path class="grid" d="M{x0} {y:.1f}h{WIDTH}"/><text class="tick" x="{x0 - 6}" '
                   f'y="{y + 4:.1f}" text-anchor="end">{tenth * 10} %</text>')
    for value in ticks(low, high):
        x = place_x(value)
        out.append(f'<path class="grid" d="M{x:.1f} {y0}v{HEIGHT}"/><text class="tick" '
                   f'x="{x:.1f}" y="{y0 + HEIGHT + 16}" text-anchor="middle">{value:g}</text>')
    out.append(f'<text class="tick" x="{x0 + WIDTH / 2}" y="{y0 + HEIGHT + 34}" '
               f'text-anchor="middle">{unit}</text>')
    for name, group in itertools.groupby(data, key=lambda point: point[0]):
        c, group = COLOURS[name], list(group)
        line = "L".join(f"{place_x(pick(p)):.1f} {place_y(p[2]):.1f}" for p in group)
        out.append(f'<path d="M{line}" stroke="{c}" fill="none" stroke-width="1.2"/>')
        for point in group:
            x, y = place_x(pick(point)), place_y(point[2])
            out.append(f'<path d="M{x:.1f} {place_y(point[4]):.1f}V{place_y(point[3]):.1f}" '
                       f'stroke="{c}" stroke-width="1" opacity=".45"/>'
                       f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{c}"/>')
            if point[1]:
                out.append(f'<text x="{x + 6:.1f}" y="{y + 11:.1f}" fill="{c}">{point[1]}</text>')
    return out


def draw(titles):
    """The chart of [(title, points)]."""
    out, seen = [], set()
    for i, (title, data) in enumerate(titles):
        seen |= {point[0] for point in data}
        y0 = TOP + i * (HEIGHT + GAP)
        out.append(f'<text class="title" x="{LEFT}" y="{y0 - 12}">{title}</text>')
        out += panel(LEFT, y0, data, lambda p: p[5], "seconds a puzzle, median")
        out += panel(LEFT + WIDTH + GAP, y0, data, lambda p: p[6], "tokens computed a puzzle, mean")
    x = LEFT
    for name in filter(seen.__contains__, COLOURS):
        out.append(f'<circle cx="{x + 4}" cy="24" r="4" fill="{COLOURS[name]}"/>'
                   f'<text x="{x + 14}" y="28" fill="{COLOURS[name]}">{TITLES.get(name, name)}</text>')
        x += 34 + 7 * len(TITLES.get(name, name))
    width = LEFT + 2 * WIDTH + GAP + 30
    height = TOP + len(titles) * (HEIGHT + GAP) - 30
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'font-family="system-ui, sans-serif" font-size="11"><style>'
            '.grid{stroke:#d9d8d3;stroke-width:.7}.tick{fill:#6d6d68}'
            '.title{font-size:14px;font-weight:600;fill:#1c1c1a}</style>'
            f'<rect width="{width}" height="{height}" fill="#fff"/>')
    return "\n".join([head, *out, "</svg>\n"])


def main():
    if len(sys.argv) < 2 or any("=" not in argument for argument in sys.argv[1:]):
        sys.exit(__doc__)
    parts = [argument.split("=", 1) for argument in sys.argv[1:]]
    sys.stdout.write(draw([(title, points(rows_of(paths.split(",")))) for title, paths in parts]))


if __name__ == "__main__":
    main()
