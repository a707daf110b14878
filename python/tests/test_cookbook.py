"""The pages of docs/cookbook are run as doctests: what they say is what happens.

Every `pycon` block of a page is run, one after another, in the repository's root. A comment
`<!-- needs: ray, numpy -->` says which packages are needed: before a page's first `##` by the page,
else by the rest of the section. A page is run without such sections, and once more for each need
with those that have it, where its packages are installed.
"""

from __future__ import annotations

import dataclasses
import doctest
import importlib.util
import pathlib
import re
import sys

import pytest
from conftest import ROOT

PAGES = sorted((ROOT / "docs/cookbook").glob("*.md"))
NEEDS = re.compile(r"<!-- needs: (.+) -->")
LONGEST = 200  # lines


@dataclasses.dataclass
class Block:
    """Code of a page, and the packages that it needs, as the page names them."""

    line: int
    code: str
    needs: str


def blocks_of(page: pathlib.Path) -> list[Block]:
    blocks: list[Block] = []
    whole, section, inside = "", "", False
    headed = False
    for number, line in enumerate(page.read_text().splitlines(keepends=True)):
        if line.startswith("```"):
            inside = line.startswith("```pycon")
            if inside:
                blocks.append(Block(number + 1, "", section or whole))
        elif inside:
            blocks[-1].code += line
        elif line.startswith("## "):
            headed, section = True, ""
        elif found := NEEDS.match(line):
            if headed:
                section = found[1]
            else:
                whole = found[1]
    return blocks


def cases() -> list[tuple[pathlib.Path, str]]:
    """A page with one of its needs, or with none."""
    return [(page, need) for page in PAGES for need in sorted({b.needs for b in blocks_of(page)})]


def name(value: object) -> str:
    return value.stem if isinstance(value, pathlib.Path) else str(value).replace(", ", "+")


@pytest.mark.parametrize(("page", "needs"), cases(), ids=name)
def test_a_page(
    page: pathlib.Path, needs: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    missing = [p for p in needs.split(", ") if p and importlib.util.find_spec(p) is None]
    if missing:
        pytest.skip(f"{page.name} needs {', '.join(missing)}, which is not installed")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", sys.path[:])
    for variable in ("HF_HOME", "DSPY_CACHEDIR"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    parser = doctest.DocTestParser()
    names: dict[str, object] = {"__name__": "__main__"}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.FAIL_FAST)
    report: list[str] = []
    try:
        for block in blocks_of(page):
            if block.needs in ("", needs):
                test = parser.get_doctest(block.code, {}, page.name, str(page), block.line)
                test.globs = names
                runner.run(test, out=report.append, clear_globs=False)
            if runner.failures:
                break
    finally:
        names.clear()
    assert runner.tries > 0
    assert runner.failures == 0, "".join(report)


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/cookbook/README.md").read_text()
    for page in PAGES:
        assert page.name == "README.md" or f"]({page.name})" in index


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pages_are_short(page: pathlib.Path) -> None:
    assert len(page.read_text().splitlines()) < LONGEST


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / link).exists(), link
