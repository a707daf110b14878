#!/usr/bin/env python3
"""Draws what dendrite-bench game24 found: solved puzzles against seconds and against tokens.

  tools/plot_game24.py TITLE=RESULT.json [TITLE=RESULT.json ...] > docs/game24.svg

One row of panels a file. Bars are Wilson 95 % intervals. Standard library only.
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, TOP, GAP = 420, 250, 56, 34, 70
COLOURS = {"greedy": "#6d6d68", "best-of-n": "#b3470a", "beam": "#7a4fb0", "tot": "#0a7a3d",
           "depth-first": "#7a8a10", "best-first": "#0a8a8a", "mcts": "#0b62a8"}


def points(path):
    """[(label, strategy, share, low, high, seconds, tokens)] in the order of the file."""
    rows = json.load(open(path))["rows"]
    times = {(row["name"], json.dumps(row["params"])): row["median"]
             for row in rows if row["unit"] == "s"}
    out = []
    for row in rows:
        if row["unit"] != "solved":
            continue
        name, params = row["name"], row["params"]
        width = str(params.get("width", ""))
        seconds = times[(name + " time", json.dumps(params))]
        tokens = row["tokens_computed"] / row["solvable"]
        out.append(((name + " " + width).strip(), name, row["median"], *row["ci95"], seconds, tokens))
    return out


def colour(name):
    return next((c for key, c in COLOURS.items() if name.startswith(key)), "#1c1c1a")


def panel(x0, y0, data, pick, unit):
    """One scatter plot with a logarithmic x axis."""
    values = [pick(point) for point in data]
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)) + 1e-9)
    place_x = lambda v: x0 + (math.log10(v) - low) / max(1, high - low) * WIDTH
    place_y = lambda share: y0 + (1 - share) * HEIGHT
    out = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = place_y(share)
        out.append(f'<path class="grid" d="M{x0} {y:.1f}h{WIDTH}"/>'
                   f'<text class="tick" x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>')
    for power in range(low, high + 1):
        x = place_x(10.0**power)
        out.append(f'<path class="grid" d="M{x:.1f} {y0}v{HEIGHT}"/><text class="tick" x="{x:.1f}" '
                   f'y="{y0 + HEIGHT + 16}" text-anchor="middle">{10.0**power:g}</text>')
    out.append(f'<text class="tick" x="{x0 + WIDTH / 2}" y="{y0 + HEIGHT + 34}" '
               f'text-anchor="middle">{unit}</text>')
    for label, name, share, bottom, top, *_ in data:
        point = next(p for p in data if p[0] == label)
        x, y, c = place_x(pick(point)), place_y(share), colour(name)
        out.append(f'<path d="M{x:.1f} {place_y(top):.1f}V{place_y(bottom):.1f}" stroke="{c}" '
                   f'stroke-width="1.5"/><circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{c}"/>'
                   f'<text x="{x + 7:.1f}" y="{y + 12:.1f}" fill="{c}">{label}</text>')
    return out


def main():
    if len(sys.argv) < 2 or any("=" not in argument for argument in sys.argv[1:]):
        sys.exit(__doc__)
    out = []
    for i, argument in enumerate(sys.argv[1:]):
        title, path = argument.split("=", 1)
        data = points(path)
        y0 = TOP + i * (HEIGHT + GAP + TOP)
        out.append(f'<text class="title" x="{LEFT}" y="{y0 - 12}">{title}</text>')
        out += panel(LEFT, y0, data, lambda p: p[5], "seconds a puzzle, median (log)")
        out += panel(LEFT + WIDTH + GAP, y0, data, lambda p: p[6], "tokens computed a puzzle, mean (log)")
    width = LEFT + 2 * WIDTH + GAP + 90
    height = len(sys.argv[1:]) * (HEIGHT + GAP + TOP)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
          f'font-family="system-ui, sans-serif" font-size="11"><style>'
          '.grid{stroke:#d9d8d3;stroke-width:.7}.tick{fill:#6d6d68}'
          '.title{font-size:14px;font-weight:600;fill:#1c1c1a}</style>'
          f'<rect width="{width}" height="{height}" fill="#fff"/>')
    print("\n".join(out))
    print("</svg>")


if __name__ == "__main__":
    main()
