"""What notebooks show of a search: its tree as an inline SVG image, a page, and a progress bar.

Nothing here needs a notebook but the bar, which needs tqdm (pip install tqdm).
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from dendrite._core import Error
from dendrite._records import SearchEvent, SearchResult, ThoughtRecord

_ROW = 26
_COLUMN = 210
_NARROW = 96  # of trees deeper than _DEEP: those of beams, where a thought is a token
_DEEP = 8
_MARGIN = 14
_SHOWN_TEXT = 26
_LINK, _PATH = "#9aa0aa", "#0a7a3d"
_UNPRINTABLE = {code: "\ufffd" for code in (*range(32), *range(0x7F, 0xA0), 0xFFFE, 0xFFFF)}


@dataclasses.dataclass
class _Place:
    """A thought in the image."""

    thought: ThoughtRecord | None  # None: the prompt
    parent: int | None
    children: list[int] = dataclasses.field(default_factory=list)
    hidden: int = 0
    depth: int = 0
    row: float = 0.0


def to_svg(result: SearchResult, max_nodes: int = 300) -> str:
    """The tree of a search as an SVG image without scripts; all text in it is escaped.

    Depth goes to the right. The path to the result is the first row, from the prompt in the upper
    left corner on, where a notebook opens; other siblings are below in the order of proposal. A
    dot's shade is its value, the line to the result is green, what was kept has a ring. Beyond
    `max_nodes` thoughts, those of the path, then what was kept, then the best values are shown, the
    others counted.

    result: of run_tree, of whatever strategy.
    max_nodes: thoughts that are shown, at most. Raises ValueError where it is < 1.
    """
    if max_nodes < 1:
        raise ValueError(f"max_nodes is {max_nodes}; expected >= 1")
    places = _places(result, max_nodes)
    path = {step.node for step in result.path}
    rows = _lay_out(places, path)
    deepest = max(place.depth for place in places.values())
    column = _COLUMN if deepest <= _DEEP else _NARROW
    width = 2 * _MARGIN + (deepest + 1) * column
    height = 2 * _MARGIN + max(rows, 1) * _ROW
    values = [p.thought.value for p in places.values() if p.thought is not None]
    finite = [value for value in values if math.isfinite(value)]
    scale = (min(finite), max(finite)) if finite else (0.0, 0.0)
    body = [_link(places, node, column, path) for node in places if node != 0]
    body += [_dot(place, node, column, scale, path) for node, place in places.items()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="11" '
        f'fill="currentColor">{"".join(body)}</svg>'
    )


def to_html(result: SearchResult) -> str:
    """What a notebook shows for a SearchResult, the `result` of a search."""
    head = "solved" if result.solved else "not solved"
    line = f"{head} ({result.finish.name.lower()}), {len(result.tree)} thoughts"
    votes = "".join(f"<br>{_clean(vote.answer)}: {vote.count} votes" for vote in result.votes[:10])
    return (
        f'<div><b>{line}</b>{votes}<div style="overflow:auto;max-height:600px">'
        f"{to_svg(result)}</div></div>"
    )


def page(trace: str | os.PathLike[str]) -> str:
    """The record of a search (run_tree's `trace`) as one page of HTML with everything inside.

    trace: the file, of JSON lines. Raises Error where it is no trace.
    """
    return read_page(trace)[0]


def read_page(trace: str | os.PathLike[str]) -> tuple[str, int, str]:
    """The page of a `trace`, how many thoughts it shows, and how the search ended."""
    try:
        text = Path(trace).read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
        is_trace = bool(lines) and lines[0].get("trace") == 1
    except (OSError, ValueError, AttributeError) as error:
        raise Error(f"{trace}: {error}; expected a trace, which is JSON lines") from None
    if not is_trace:
        raise Error(f'{trace}: is no trace; expected JSON lines, the first with "trace": 1')
    thoughts = sum(line.get("event") == "proposed" for line in lines)
    end = "a search that did not end"
    if "result" in lines[-1]:
        end = "solved" if lines[-1]["result"]["solved"] else "not solved"
    here = Path(__file__).resolve().parent
    # (Beside this in a package; a source tree has it where the program `dendrite` is made from.)
    places = (here / "trace_page.html", here.parents[1] / "cli" / "trace_page.html")
    template = next(place for place in places if place.is_file()).read_text(encoding="utf-8")
    # A "<" of a thought could end the element that the lines are in.
    return template.replace("@TRACE@", text.replace("<", "\\u003c")), thoughts, end


class Progress:
    """A progress bar of a search, at most ten times a second: its `on` is told of thoughts."""

    def __init__(self, also: Callable[[SearchEvent], object] | None = None) -> None:
        """`also` is told as well. Raises ImportError where tqdm is missing."""
        try:
            tqdm: Any = importlib.import_module("tqdm.auto").tqdm
        except ImportError as error:
            raise ImportError("progress=True needs tqdm: pip install tqdm") from error
        self._also = also
        self._bar: Any = tqdm(unit=" thoughts", desc="search", mininterval=0.1)
        self._new = 0
        self._depth = 0
        self._best = -math.inf
        self._shown = 0.0

    def on(self, event: SearchEvent) -> None:
        """Counts the event; shows it when it is time."""
        thought = event.thought
        if event.kind == "proposed":
            self._new += 1
            self._depth = max(self._depth, thought.depth)
        elif event.kind in ("judged", "visited") and thought.value > self._best:
            self._best = thought.value
        now = time.monotonic()
        if now - self._shown >= 0.1:
            self._shown = now
            self._show()
        if self._also is not None:
            self._also(event)

    def _show(self) -> None:
        best = f"{self._best:.3f}" if math.isfinite(self._best) else "-"
        self._bar.set_postfix_str(f"depth {self._depth}, best {best}", refresh=False)
        self._bar.update(self._new)
        self._new = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._show()
        self._bar.close()


def _places(result: SearchResult, max_nodes: int) -> dict[int, _Place]:
    """The prompt and the thoughts that are shown, by node, with what is hidden below each."""
    known = {thought.node: thought for thought in result.tree}

    def parent_of(thought: ThoughtRecord) -> int:
        return thought.parent if thought.parent in known else 0

    shown: set[int] = set()
    for thought in _by_weight(result):
        chain = []
        node = thought.node
        while node != 0 and node not in shown:
            chain.append(node)
            node = parent_of(known[node])
        if len(shown) + len(chain) <= max_nodes:
            shown.update(chain)
    places = {0: _Place(None, None)}
    for thought in result.tree:
        if thought.node in shown:
            places[thought.node] = _Place(thought, parent_of(thought))
    for node, place in places.items():
        if place.parent is not None:
            places[place.parent].children.append(node)
    for thought in result.tree:
        node = thought.node
        while node not in places:
            node = parent_of(known[node])
        places[node].hidden += node != thought.node
    return places


def _by_weight(result: SearchResult) -> Iterable[ThoughtRecord]:
    path = {step.node for step in result.path}

    def key(thought: ThoughtRecord) -> tuple[bool, bool, float, int]:
        value = -math.inf if math.isnan(thought.value) else thought.value
        return (thought.node not in path, not thought.kept, -value, thought.node)

    return sorted(result.tree, key=key)


def _lay_out(places: dict[int, _Place], path: set[int]) -> int:
    """Leaves take a row each, a parent stands beside its first child, and of siblings the one of
    the path comes first: the path is the first row. Returns the rows."""
    rows = 0
    order = []
    waiting = [0]
    while waiting:
        node = waiting.pop()
        place = places[node]
        order.append(place)
        if place.parent is not None:
            place.depth = places[place.parent].depth + 1
        if not place.children:
            place.row = rows
            rows += 1
        place.children.sort(key=lambda child: child not in path)
        waiting.extend(reversed(place.children))
    for place in reversed(order):
        if place.children:
            place.row = places[place.children[0]].row
    return rows


def _at(place: _Place, column: int) -> tuple[float, float]:
    return _MARGIN + place.depth * column, _MARGIN + (place.row + 0.5) * _ROW


def _link(places: dict[int, _Place], node: int, column: int, path: set[int]) -> str:
    place = places[node]
    assert place.parent is not None
    x1, y1 = _at(places[place.parent], column)
    x2, y2 = _at(place, column)
    middle = x2 - 24
    colour, stroke = (_PATH, 2.5) if node in path else (_LINK, 1.0)
    return (
        f'<path d="M{x1:g} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}" fill="none" '
        f'stroke="{colour}" stroke-width="{stroke:g}"/>'
    )


def _dot(place: _Place, node: int, column: int, scale: tuple[float, float], path: set[int]) -> str:
    x, y = _at(place, column)
    more = f" +{place.hidden} more" if place.hidden else ""
    if place.thought is None:
        label, title, colour, ring = f"prompt{more}", "prompt", _LINK, False
    else:
        thought = place.thought
        colour, ring = _colour(thought.value, scale), thought.kept
        label, title = _label(thought, column) + more, _title(thought)
    edge = _PATH if node in path else "currentColor"
    outline = f' stroke="{edge}" stroke-width="2"' if ring or node in path else ""
    weight = ' font-weight="600"' if node in path else ""
    right, up = (2, -7) if place.children else (9, 4)  # clear of the lines to its children
    return (
        f'<g><title>{_clean(title)}</title><circle cx="{x:g}" cy="{y:g}" r="5" fill="{colour}"'
        f'{outline}/><text x="{x + right:g}" y="{y + up:g}"{weight}>{_clean(label)}</text></g>'
    )


def _label(thought: ThoughtRecord, column: int) -> str:
    room = _SHOWN_TEXT if column == _COLUMN else 6
    text = thought.text if len(thought.text) <= room else thought.text[: room - 1] + "…"
    if column != _COLUMN:
        return text
    value = f" · {thought.value:.3f}" if math.isfinite(thought.value) else ""
    return text + value + (f" · ×{thought.visits}" if thought.visits else "")


def _title(thought: ThoughtRecord) -> str:
    visits = f", {thought.visits} visits" if thought.visits else ""
    return (
        f"node {thought.node}: {thought.text[:500]} (value {thought.value:.4g}{visits}, "
        f"log-prob {thought.logprob:.4g}, {thought.tokens} tokens)"
    )


def _colour(value: float, scale: tuple[float, float]) -> str:
    """From grey to blue."""
    low, high = scale
    if not math.isfinite(value):
        return "#b0b0b0"
    share = (value - low) / (high - low) if high > low else 1.0
    parts = [
        round(a + (b - a) * share)
        for a, b in zip((0xC8, 0xCE, 0xD8), (0x23, 0x56, 0xB8), strict=True)
    ]
    return "#" + "".join(f"{part:02x}" for part in parts)


def _clean(text: str) -> str:
    """Text as HTML and XML can hold it."""
    text = text.replace("\n", " ").translate(_UNPRINTABLE)
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))
