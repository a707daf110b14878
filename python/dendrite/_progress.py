"""How far many requests are, for people who wait."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any, Self

from dendrite import _doors


class Bar:
    """Requests that have ended, of all: by tqdm where that is installed, else as a line on stderr.

    At most ten times a second.
    """

    def __init__(self, total: int, shown: bool) -> None:
        if not isinstance(shown, bool):
            raise _doors.wrong("progress", shown, "a bool")
        self._total, self._ended, self._tokens = total, 0, 0
        self._begun = time.monotonic()
        self._next = 0.0
        self._bar: Any = None
        self._shown = shown
        if not shown:
            return
        try:
            tqdm: Any = importlib.import_module("tqdm.auto").tqdm
        except ImportError:
            return
        self._bar = tqdm(total=total, unit=" prompts", desc="generate", mininterval=0.1)

    def add(self, prompts: int, tokens: int) -> None:
        """So many more have ended, with so many tokens."""
        self._ended += prompts
        self._tokens += tokens
        if not self._shown:
            return
        now = time.monotonic()
        if now >= self._next or self._ended == self._total:
            self._next = now + 0.1
            self._show(now)

    def _show(self, now: float) -> None:
        rate = f"{self._tokens / max(now - self._begun, 1e-9):.0f} tokens/s"
        if self._bar is None:
            sys.stderr.write(f"\rgenerate: {self._ended} of {self._total} prompts, {rate} ")
            sys.stderr.flush()
        else:
            self._bar.set_postfix_str(rate, refresh=False)
            self._bar.update(self._ended - self._bar.n)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self._shown:
            return
        self._show(time.monotonic())
        if self._bar is None:
            sys.stderr.write("\n")
        else:
            self._bar.close()
