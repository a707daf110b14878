"""What the adapters' tests share: real models, and no network.

Each test file needs a package at the versions of the .txt file beside it, and is skipped without:
`pip install -r python/tests/adapters/lm_eval.txt`, then `pytest python/tests/adapters`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dendrite import Engine

from . import offline
from .game24 import MODELS

CLI = Path(os.environ.get("DENDRITE_CLI", MODELS.parent / "build/bin/dendrite"))

_home = tempfile.TemporaryDirectory(prefix="dendrite-adapters-")
# Packages read these when they are imported. What they write goes to a folder of the tests' own.
os.environ.update(offline.SETTINGS)
for _name in ("HF_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "DSPY_CACHEDIR"):
    os.environ[_name] = os.path.join(_home.name, _name.lower())


def pytest_unconfigure() -> None:
    _home.cleanup()


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections to other machines fail, loudly."""
    offline.refuse(monkeypatch.setattr)


@pytest.fixture(scope="session")
def engine_24() -> Iterator[Engine]:
    """The model that plays the Game of 24."""
    with Engine(MODELS / "dendrite-24") as engine:
        yield engine


@pytest.fixture(scope="session")
def engine_tools() -> Iterator[Engine]:
    """The model that answers with tool calls."""
    with Engine(MODELS / "dendrite-tools") as engine:
        yield engine


@pytest.fixture(scope="session")
def engine_compose() -> Iterator[Engine]:
    """The model of questions about documents; its context is the longest."""
    with Engine(MODELS / "dendrite-compose") as engine:
        yield engine


@pytest.fixture(scope="session")
def cli() -> str:
    """The command line, to compare with."""
    if not CLI.exists():
        pytest.skip(f"no command line at {CLI}: build it, or name it in DENDRITE_CLI")
    return str(CLI)
