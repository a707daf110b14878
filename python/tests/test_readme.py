"""The Python that README.md shows runs, in the repository's root."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT

PIECES = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)


def test_there_is_some() -> None:
    assert PIECES


@pytest.mark.parametrize("code", PIECES)
def test_a_piece(
    code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
