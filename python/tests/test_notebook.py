"""What notebooks show."""

from __future__ import annotations

import sys
import types
import xml.etree.ElementTree as xml
from typing import Any

import pytest

from dendrite import (
    BeamSearch,
    SearchResult,
    Session,
    ThoughtRecord,
    TreeOfThoughts,
    Vote,
    _game24,
    notebook,
)

SVG = "{http://www.w3.org/2000/svg}"


def made(count: int = 12, text: str = "step") -> SearchResult:
    """Every thought has two children; the path is the first of each."""
    tree = [
        ThoughtRecord(
            node, node // 2, depth=node.bit_length(), text=f"{text} {node}", value=1 / node
        )
        for node in range(1, count + 1)
    ]
    path = [thought for thought in tree if thought.node & (thought.node - 1) == 0]
    for thought in path:
        thought.kept = True
    return SearchResult(solved=True, path=path, tree=tree)


def test_a_search_as_an_image(session: Session) -> None:
    strategy = _game24.tree_of_thoughts([4, 5, 6, 10], 24, 5)
    result = session.run_tree(strategy, _game24.prompt([4, 5, 6, 10], 24))
    image = xml.fromstring(result.to_svg())
    assert len(image.findall(f"{SVG}g")) == len(result.tree) + 1
    thick = [line for line in image.findall(f"{SVG}path") if line.get("stroke-width") == "2.5"]
    assert len(thick) == len(result.path) == 3
    shown = "".join(image.itertext())
    assert all(step.text in shown for step in result.path)
    assert result._repr_html_().startswith("<div><b>solved (stop), ")


def test_the_tree_opens_at_the_root_with_its_path_in_sight() -> None:
    tree = [ThoughtRecord(node, 0, depth=1, text=f"step {node}") for node in range(1, 200)]
    path = [tree[150], ThoughtRecord(200, 151, depth=2, text="the end")]
    image = xml.fromstring(SearchResult(solved=True, path=path, tree=[*tree, path[1]]).to_svg())
    places = {
        (group.findtext(f"{SVG}title") or "").split(":")[0]: dot
        for group in image.findall(f"{SVG}g")
        if (dot := group.find(f"{SVG}circle")) is not None
    }
    rows = {float(places[name].get("cy", "nan")) for name in ("prompt", "node 151", "node 200")}
    assert len(rows) == 1 and rows.pop() < 40  # one straight row, the first
    assert float(places["prompt"].get("cx", "nan")) < 20
    others = [f"node {node}" for node in range(1, 200) if node != 151]
    order = [float(places[name].get("cy", "nan")) for name in others]
    assert order == sorted(order)  # the others as they were proposed


def test_text_is_escaped() -> None:
    bad = '<script>alert("1")</script> & \x00 \ud800'
    result = made(3, bad)
    result.votes = [Vote(bad, 2)]
    page = notebook.to_html(result)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    page.encode("utf-8")
    image = xml.fromstring(result.to_svg())
    assert any("alert" in (title.text or "") for title in image.iter(f"{SVG}title"))


def test_many_thoughts_collapse_into_counts() -> None:
    result = made(1000)
    image = xml.fromstring(result.to_svg(max_nodes=20))
    assert len(image.findall(f"{SVG}g")) == 21
    texts = [text.text or "" for text in image.iter(f"{SVG}text")]
    hidden = sum(int(text.split("+")[1].split()[0]) for text in texts if "+" in text)
    assert hidden == 1000 - 20
    titles = [title.text or "" for title in image.iter(f"{SVG}title")]
    for step in result.path:  # never collapsed
        assert any(title.startswith(f"node {step.node}:") for title in titles)
    with pytest.raises(ValueError, match="max_nodes is 0; expected >= 1"):
        result.to_svg(0)


def test_deep_trees_and_empty_ones(session: Session) -> None:
    result = session.run_tree(BeamSearch(width=2, max_tokens=20), "S 24: 4 5 6 10\n")
    xml.fromstring(result.to_svg())
    deep = [ThoughtRecord(node, node - 1, depth=node, text="t") for node in range(1, 3000)]
    xml.fromstring(SearchResult(tree=deep).to_svg(max_nodes=5000))
    xml.fromstring(SearchResult().to_svg())
    lost = SearchResult(tree=[ThoughtRecord(5, 3, text="its parent is not in the tree")])
    assert "its parent" in lost.to_svg()


class Bar:
    """A tqdm that counts."""

    made: list[Bar] = []

    def __init__(self, **options: Any) -> None:
        self.total, self.updates, self.closed = 0, 0, False
        Bar.made.append(self)

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self.text = text

    def update(self, count: int) -> None:
        self.total += count
        self.updates += 1

    def close(self) -> None:
        self.closed = True


def test_progress(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("tqdm.auto")
    module.tqdm = Bar  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)
    monkeypatch.setattr(notebook.time, "monotonic", iter(x * 0.001 for x in range(10**6)).__next__)
    seen: list[str] = []
    strategy = TreeOfThoughts(depth=2, on_event=lambda event: seen.append(event.kind))
    result = session.run_tree(strategy, "P 24: 4 5 6 10\n", progress=True)
    bar = Bar.made[-1]
    assert bar.total == len(result.tree) == seen.count("proposed")
    assert bar.updates <= len(seen) / 100 + 2  # a millisecond an event: ten times a second
    assert bar.closed and "depth 2, best -" in bar.text

    def fail(event: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        session.run_tree(TreeOfThoughts(on_event=fail), "P 24: 4 5 6 10\n", progress=True)
    assert Bar.made[-1].closed


def test_progress_without_tqdm(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match="pip install tqdm"):
        session.run_tree(TreeOfThoughts(depth=1), "P 24: 4 5 6 10\n", progress=True)
