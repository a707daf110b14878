"""What all tests share: models of the repository, engines that are loaded once."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from dendrite import Engine, Session, _core

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEVICE = os.environ.get("DENDRITE_TEST_DEVICE", "cpu")
_core.report_leaks()
# A shell starts what runs in the background with interrupts ignored; tests send some.
signal.signal(signal.SIGINT, signal.default_int_handler)
PROMPT = "S 24: 4 9 10 13\n"  # what dendrite-24 was trained on


def load(**options: Any) -> Engine:
    """The shipped model on DENDRITE_TEST_DEVICE."""
    return Engine(ROOT / "models/dendrite-24", device=DEVICE, threads=1, **options)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with load(kv_tokens=65536) as loaded:
        yield loaded


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with engine.session(seed=7) as opened:
        yield opened


@pytest.fixture
def small() -> Iterator[Engine]:
    """An engine of its own: for tests that count pages, or close it."""
    with load(kv_tokens=16384, prefix_index=False, beyond_positions=True) as loaded:
        yield loaded
