"""How a coroutine waits for an engine: its loop is woken when calls end, or threads do."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import itertools
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dendrite import _core

T = TypeVar("T")


class Mail:
    """What engines tell one event loop; it is woken once for all that comes together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting: dict[int, asyncio.Event] = {}
        self._numbers = itertools.count(1)
        deliver = weakref.WeakMethod(self._deliver)
        weak_loop = weakref.ref(loop)  # (`_mails` would else keep the loop that is its key)

        def wake() -> None:
            method, loop = deliver(), weak_loop()
            if method is not None and loop is not None and not loop.is_closed():
                loop.call_soon_threadsafe(method)

        self.inbox = _core.Inbox(wake)

    def _deliver(self) -> None:
        for number in self.inbox.take():
            event = self._waiting.get(number)
            if event is not None:
                event.set()

    def expect(self) -> tuple[int, asyncio.Event]:
        """A number to post, and what it sets."""
        number = next(self._numbers)
        event = self._waiting[number] = asyncio.Event()
        return number, event

    def forget(self, number: int) -> None:
        """It is posted no more, or in vain."""
        del self._waiting[number]


_mails: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mail] = weakref.WeakKeyDictionary()


def mail_of_loop() -> Mail:
    """Of the running loop."""
    loop = asyncio.get_running_loop()
    mail = _mails.get(loop)
    if mail is None:
        mail = _mails[loop] = Mail(loop)
    return mail


async def ended(call: _core.Pending) -> None:
    """Until the call has ended. Cancelled, it ends the call first: its branches are free then."""
    mail = mail_of_loop()
    number, event = mail.expect()
    call.on_done(mail.inbox, number)
    cancelled: asyncio.CancelledError | None = None
    try:
        while not call.done():
            event.clear()
            if call.done():
                break
            try:
                await event.wait()
            except asyncio.CancelledError as error:
                cancelled = error
                call.cancel()
    finally:
        mail.forget(number)
        if not call.done():  # the task itself is gone: its loop has ended
            call.cancel()
    if cancelled is not None:
        call.drop()
        try:
            raise cancelled
        finally:
            cancelled = None  # (its traceback holds this frame)


def in_context(function: Callable[..., T] | None) -> Callable[..., T] | None:
    """A callback with the context variables of the task that submits it."""
    if function is None:
        return None
    context = contextvars.copy_context()
    return lambda *arguments: context.run(function, *arguments)


class EvaluatorTasks:
    """Coroutines that a search's evaluator threads wait for, in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._running: set[concurrent.futures.Future[Any]] = set()
        self._cancelled = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Called by an evaluator thread. Raises CancelledError once cancel was called."""
        with self._lock:
            if self._cancelled:
                coroutine.close()
                raise concurrent.futures.CancelledError
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            self._running.add(future)
        try:
            return future.result()
        finally:
            with self._lock:
                self._running.discard(future)

    def cancel(self) -> None:
        """Ends those that run; no other one begins."""
        with self._lock:
            self._cancelled = True
            running = list(self._running)
        for future in running:
            future.cancel()


async def in_thread(function: Callable[[], T], cancel: Callable[[], object]) -> T:
    """Runs it in a thread; cancelled, it ends the function's calls and waits for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result: T | None = context.run(function)
            error: BaseException | None = None
        except BaseException as raised:  # noqa: BLE001 - it is the awaiting task's
            result, error = None, raised
        loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, name="dendrite-call", daemon=True).start()
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        cancel()
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                continue
        if not future.cancelled():
            future.exception()
        raise
