"""Charts of bench_report.py as SVG text: grouped bars, and ratios with their intervals."""
import math
from typing import Callable
from xml.sax.saxutils import escape

from bench_samples import Interval, number

WIDTH, LABEL, VALUE, TOP, BAR, GAP = 900, 270, 96, 62, 15, 12
COLOURS = {"Dendrite": "#0a7a3d", "vLLM": "#b3470a", "vLLM, cascade": "#e0954f", "llama.cpp": "#7a4fb0",
           "FlashInfer, flat": "#0b62a8", "FlashInfer, cascade": "#0a8a8a", "radix cache": "#7a8a10",
           "block cache": "#b08a10", "every path again": "#6d6d68"}

Bar = tuple[str, Interval]  # side, value
Group = tuple[str, list[Bar]]  # label of a row, its sides


def bars(title: str, unit: str, groups: list[Group]) -> str:
    """Grouped bars from 0; the line on a bar's end is its interval."""
    most = max(bar.high for _, sides in groups for _, bar in sides)
    place = lambda value: LABEL + value / most * (WIDTH - LABEL - VALUE)

    def draw(side: str, bar: Interval, y: float) -> list[str]:
        colour = COLOURS[side]
        return [f'<rect x="{LABEL}" y="{y + 1:.1f}" width="{place(bar.value) - LABEL:.1f}" height="{BAR - 2}" '
                f'fill="{colour}" opacity=".85"/>', whisker(place(bar.low), place(bar.high), y, "#1c1c1a"),
                f'<text x="{place(bar.high) + 6:.1f}" y="{y + 11.5:.1f}" fill="{colour}">{number(bar.value)}</text>']

    grid = [line(place(value), f"{value:g}") for value in steps(most)]
    return chart(title, unit, groups, grid, draw)


def ratios(title: str, groups: list[Group]) -> str:
    """Dots with intervals on a logarithmic axis; 1 is what Dendrite takes."""
    low = min(1.0, *(bar.low for _, sides in groups for _, bar in sides)) / 1.15
    high = max(2.0, *(bar.high for _, sides in groups for _, bar in sides)) * 1.1
    span = WIDTH - LABEL - VALUE
    place = lambda value: LABEL + math.log(value / low) / math.log(high / low) * span

    def draw(side: str, bar: Interval, y: float) -> list[str]:
        colour = COLOURS[side]
        return [whisker(place(bar.low), place(bar.high), y, colour),
                f'<circle cx="{place(bar.value):.1f}" cy="{y + BAR / 2:.1f}" r="4" fill="{colour}"/>',
                f'<text x="{place(bar.high) + 8:.1f}" y="{y + 11.5:.1f}" fill="{colour}">{bar.value:.2f}x</text>']

    values = [digit * 10.0**power for power in (-1, 0, 1, 2) for digit in (1, 2, 5)]
    grid = [line(place(value), f"{value:g}x", value == 1) for value in values if low <= value <= high]
    return chart(title, "times what Dendrite takes", groups, grid, draw)


def chart(title: str, unit: str, groups: list[Group], grid: list[str],
          draw: Callable[[str, Interval, float], list[str]]) -> str:
    out: list[str] = []
    y: float = TOP
    for label, sides in groups:
        out.append(f'<text x="{LABEL - 10}" y="{y + len(sides) * BAR / 2 + 4:.1f}" text-anchor="end">{escape(label)}'
                   "</text>")
        for side, bar in sides:
            out += draw(side, bar, y)
            y += BAR
        y += GAP
    body = [text.replace("{bottom}", f"{y:.1f}").replace("{tick}", f"{y + 14:.1f}") for text in grid]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 40:.0f}" '
        'font-family="system-ui, sans-serif" font-size="11"><style>.grid{stroke:#d9d8d3;stroke-width:.7}'
        '.one{stroke:#1c1c1a;stroke-width:1}.tick{fill:#6d6d68}.title{font-size:14px;font-weight:600}</style>',
        f'<rect width="{WIDTH}" height="{y + 40:.0f}" fill="#fff"/>',
        f'<text class="title" x="10" y="20">{escape(title)}</text>', *legend(groups), *body, *out,
        f'<text class="tick" x="{(LABEL + WIDTH - VALUE) / 2}" y="{y + 32:.1f}" text-anchor="middle">{unit}</text>',
        "</svg>\n"])


def legend(groups: list[Group]) -> list[str]:
    seen = {side for _, sides in groups for side, _ in sides}
    out, x = [], 14
    for side in filter(seen.__contains__, COLOURS):
        out.append(f'<circle cx="{x}" cy="38" r="4" fill="{COLOURS[side]}"/>'
                   f'<text x="{x + 10}" y="42" fill="{COLOURS[side]}">{side}</text>')
        x += 34 + 7 * len(side)
    return out


def line(x: float, label: str, one: bool = False) -> str:
    """A grid line with its tick; {bottom} and {tick} are known when all rows are placed."""
    kind = "one" if one else "grid"
    return (f'<path class="{kind}" d="M{x:.1f} {TOP - 6}V{{bottom}}"/>'
            f'<text class="tick" x="{x:.1f}" y="{{tick}}" text-anchor="middle">{label}</text>')


def whisker(low: float, high: float, y: float, colour: str) -> str:
    return f'<path d="M{low:.1f} {y + BAR / 2:.1f}H{high:.1f}" stroke="{colour}" stroke-width="1.5"/>'


def steps(most: float) -> list[float]:
    """About five round values up to `most`."""
    power = 10.0**math.floor(math.log10(most))
    step = next(digit * power / 10 for digit in (1, 2, 5, 10, 20, 50) if most / (digit * power / 10) <= 6)
    return [step * i for i in range(int(most / step) + 1)]
