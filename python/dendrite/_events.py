"""Events of an engine, and those who read them."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

from dendrite import _core


class EventStream:
    """Events as they happen: a dictionary each, with "event" (the kind), "session", "branch", ...

    `for event in stream` and `async for event in stream` wait for the next one; `take` does not.
    `with` closes it. The engine fills a bounded queue without Python; `dropped` counts what did not
    fit because nobody read.
    """

    def __init__(self, queue: _core.EventQueue) -> None:
        self._queue = queue
        self._read: deque[dict[str, Any]] = deque()
        self._closed = False

    @property
    def dropped(self) -> int:
        """Events that were lost because the queue was full."""
        return self._queue.dropped()

    def take(self) -> list[dict[str, Any]]:
        """All events so far; never waits."""
        events = list(self._read) + [json.loads(line) for line in self._queue.take()]
        self._read.clear()
        return events

    def _wait(self, seconds: float) -> None:
        self._read.extend(json.loads(line) for line in self._queue.wait_for(seconds))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            while self._read:
                yield self._read.popleft()
            if self._closed:
                return
            self._wait(0.05)  # (so that Ctrl-C is heard)

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            while self._read:
                yield self._read.popleft()
            if self._closed:
                return
            self._wait(0)
            if not self._read:
                await asyncio.sleep(0.01)

    def close(self) -> None:
        """No event comes after this; what was not read yet still can be."""
        self._queue.close()
        self._wait(0)
        self._closed = True

    def __enter__(self) -> EventStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Subscription:
    """While it is open, events are written to a file; `with` closes it."""

    def __init__(self, log: _core.FileLog) -> None:
        self._log = log

    def close(self) -> None:
        """All events until now are in the file."""
        self._log.close()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
