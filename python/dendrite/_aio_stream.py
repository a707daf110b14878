"""Tokens as they come, for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Self

from dendrite import _core
from dendrite._aio_calls import Mail, ended, mail_of_loop
from dendrite._core import BranchBusy, TokenEvent


class AsyncStream(AsyncIterator[list[TokenEvent]]):
    """The tokens of a decode call, a list a step; made by AsyncSession.stream.

    Leaving its `async for` ends the call with the step, as closing it does: its branches are free
    in the next line. (Where something else refers to it, `async with` or aclose() do that.)
    """

    def __init__(self, submit: Callable[[_core.Inbox, int], _core.Pending]) -> None:
        self._submit = submit
        self._call: _core.Pending | None = None
        self._steps: list[list[TokenEvent]] = []
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[TokenEvent]:
        if self._closed:
            raise StopAsyncIteration
        if self._call is None:
            self._begin()
        call = self._call
        assert call is not None
        while not self._steps:
            self._event.clear()
            is_last = call.done()
            self._steps = call.steps()[::-1]
            if self._steps:
                break
            if is_last:
                self._end()
                call.generations()  # raises what the call did
                raise StopAsyncIteration
            try:
                await self._event.wait()
            except asyncio.CancelledError:
                await self.aclose()
                raise
        return self._steps.pop()

    def _begin(self) -> None:
        self._mail: Mail = mail_of_loop()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._number, self._event = self._mail.expect()
        try:
            self._call = self._submit(self._mail.inbox, self._number)
        except BaseException:
            self._closed = True
            self._mail.forget(self._number)
            raise
        self._call.on_done(self._mail.inbox, self._number)

    def _end(self) -> None:
        self._closed = True
        self._mail.forget(self._number)

    async def aclose(self) -> None:
        """Ends the call; returns when its branches are free."""
        call = self._call
        if self._closed or call is None:
            self._closed = True
            return
        self._end()
        call.cancel()
        try:
            await asyncio.shield(ended(call))
        finally:
            call.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._closed or self._call is None:
            return
        self._end()
        self._call.cancel()
        if threading.get_ident() == self._thread:
            try:
                self._call.cancel_and_wait()
                return
            except BranchBusy:  # garbage that is collected in a callback, which must not wait
                pass
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._call.cancel_and_wait)
