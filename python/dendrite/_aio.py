"""Sessions for asyncio: the engine's own thread computes for all tasks in shared steps."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import itertools
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from dendrite import _core
from dendrite._compose import AnyEdit, Composed, Mode, Piece, Repair, native_edits, native_spans
from dendrite._compose import native as native_compose
from dendrite._core import Branch, Cancel, Chunk, Generation, Score, TokenEvent
from dendrite._params import DecodeFields, DecodeParams, native
from dendrite._types import Prompt

if TYPE_CHECKING:
    import os

    from dendrite._constraint import Constraint
    from dendrite._session import Session, Strategy
    from dendrite.search import SearchResult

T = TypeVar("T")


class _Mail:
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
        del self._waiting[number]


_mails: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Mail] = weakref.WeakKeyDictionary()


def _mail() -> _Mail:
    loop = asyncio.get_running_loop()
    mail = _mails.get(loop)
    if mail is None:
        mail = _mails[loop] = _Mail(loop)
    return mail


async def _ended(call: _core.Pending) -> None:
    """Until the call has ended. Cancelled, it ends the call first: its branches are free then."""
    mail = _mail()
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


async def _composed(call: _core.Pending) -> Composed:
    await _ended(call)
    return Composed(*call.composed())


def _in_context(function: Callable[..., T] | None) -> Callable[..., T] | None:
    """A callback with the context variables of the task that submits it."""
    if function is None:
        return None
    context = contextvars.copy_context()
    return lambda *arguments: context.run(function, *arguments)


class AsyncSession:
    """The computing calls of a session for asyncio; see Session.aio.

    They take the arguments of Session's, but target_kl, which makes several calls of one, as audit
    does: asyncio.to_thread(session.compose, ...) waits for those. Tasks share the engine's steps;
    what they draw does not depend on it. A task that is cancelled leaves with the next step: when
    CancelledError comes out, its branches are free. Callbacks run in the engine's thread, with the
    submitter's context variables, and hold up all others.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._handle = session._handle
        session.engine._handle.start()

    @property
    def session(self) -> Session:
        """The session."""
        return self._session

    async def prefill(
        self,
        prompt: Prompt,
        *,
        stream: int | None = None,
        add_special: bool = True,
        cancel: Cancel | None = None,
    ) -> Branch:
        """See Session.prefill."""
        call = _core.submit_prefill(self._handle, prompt, stream, add_special, cancel)
        await _ended(call)
        return call.branch()

    async def register_chunk(
        self,
        content: Prompt,
        *,
        prefix: Prompt | None = None,
        stub: bool = True,
        name: str = "",
        cancel: Cancel | None = None,
    ) -> Chunk:
        """See Session.register_chunk."""
        call = self._handle.submit_register_chunk(content, prefix, stub, name, cancel)
        await _ended(call)
        return call.chunk()

    async def compose(
        self,
        pieces: Sequence[Piece],
        *,
        repair: Repair | None = None,
        mode: Mode = "composed",
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> Composed:
        """See Session.compose.

        Branches that pieces are spans of are read at once: they may change, and go, meanwhile.
        """
        params = native_compose(repair, mode, 0, cancel, exact_behind)
        return await _composed(self._handle.submit_compose(pieces, params))

    async def generate_from_chunks(
        self,
        pieces: Sequence[Piece],
        params: DecodeParams | None = None,
        *,
        repair: Repair | None = None,
        mode: Mode = "composed",
        on_token: Callable[[TokenEvent], object] | None = None,
        on_step: Callable[[list[TokenEvent]], bool | None] | None = None,
        cancel: Cancel | None = None,
        **fields: Unpack[DecodeFields],
    ) -> Generation:
        """See Session.generate_from_chunks."""
        composed = await self.compose(pieces, repair=repair, mode=mode, cancel=cancel)
        with composed.branch as branch:
            return await self.decode(
                branch, params, on_token=on_token, on_step=on_step, cancel=cancel, **fields
            )

    async def edit(
        self,
        branch: Branch,
        edits: Sequence[AnyEdit],
        *,
        repair: Repair | None = None,
        mode: Mode = "composed",
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> Composed:
        """See Session.edit."""
        params = native_compose(repair, mode, 0, cancel, exact_behind)
        return await _composed(self._handle.submit_edit(branch, native_edits(edits), params))

    async def compact(
        self,
        branch: Branch,
        keep: Sequence[tuple[int, int]],
        summary: str = "",
        *,
        repair: Repair | None = None,
        mode: Mode = "composed",
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> Composed:
        """See Session.compact."""
        params = native_compose(repair, mode, 0, cancel, exact_behind)
        spans = native_spans(keep)
        return await _composed(self._handle.submit_compact(branch, spans, summary, params))

    async def join(
        self,
        siblings: Sequence[Branch],
        *,
        before_each: str = "",
        after_all: str = "",
        repair: Repair | None = None,
        mode: Mode = "composed",
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> Composed:
        """See Session.join."""
        params = native_compose(repair, mode, 0, cancel, exact_behind)
        return await _composed(self._handle.submit_join(siblings, before_each, after_all, params))

    async def join_many(
        self,
        groups: Sequence[Sequence[Branch]],
        *,
        before_each: str = "",
        after_all: str = "",
        repair: Repair | None = None,
        mode: Mode = "composed",
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> list[Composed]:
        """See Session.join_many."""
        params = native_compose(repair, mode, 0, cancel, exact_behind)
        call = self._handle.submit_join_many(groups, before_each, after_all, params)
        await _ended(call)
        return [Composed(*one) for one in call.joins()]

    async def settle(self, branch: Branch, *, cancel: Cancel | None = None) -> Branch:
        """See Session.settle."""
        return await self.prefill(branch.tokens, cancel=cancel)

    @overload
    async def decode(
        self,
        branches: Branch,
        params: DecodeParams | None = None,
        *,
        on_token: Callable[[TokenEvent], object] | None = None,
        on_step: Callable[[list[TokenEvent]], bool | None] | None = None,
        enough: Callable[[int, Generation], bool] | None = None,
        cancel: Cancel | None = None,
        **fields: Unpack[DecodeFields],
    ) -> Generation: ...
    @overload
    async def decode(
        self,
        branches: Sequence[Branch],
        params: DecodeParams | None = None,
        *,
        on_token: Callable[[TokenEvent], object] | None = None,
        on_step: Callable[[list[TokenEvent]], bool | None] | None = None,
        enough: Callable[[int, Generation], bool] | None = None,
        cancel: Cancel | None = None,
        **fields: Unpack[DecodeFields],
    ) -> list[Generation]: ...
    async def decode(
        self,
        branches: Branch | Sequence[Branch],
        params: DecodeParams | None = None,
        *,
        on_token: Callable[[TokenEvent], object] | None = None,
        on_step: Callable[[list[TokenEvent]], bool | None] | None = None,
        enough: Callable[[int, Generation], bool] | None = None,
        cancel: Cancel | None = None,
        **fields: Any,
    ) -> Generation | list[Generation]:
        """See Session.decode."""
        call = _core.submit_decode(
            self._handle,
            branches,
            native(params, fields),
            _in_context(on_token),
            _in_context(on_step),
            _in_context(enough),
            cancel,
            None,
            0,
        )
        await _ended(call)
        out = call.generations()
        return out[0] if isinstance(branches, Branch) else out

    async def stream(
        self,
        branches: Branch | Sequence[Branch],
        params: DecodeParams | None = None,
        *,
        cancel: Cancel | None = None,
        **fields: Unpack[DecodeFields],
    ) -> AsyncGenerator[list[TokenEvent], None]:
        """See Session.stream; closing the generator cancels the call."""
        mail = _mail()
        number, event = mail.expect()
        call = _core.submit_decode(
            self._handle,
            branches,
            native(params, fields),
            None,
            None,
            None,
            cancel,
            mail.inbox,
            number,
        )
        try:
            call.on_done(mail.inbox, number)
            while not call.done():
                event.clear()
                for step in call.steps():
                    yield step
                if not call.done():
                    await event.wait()
            for step in call.steps():
                yield step
            call.generations()
        finally:
            mail.forget(number)
            if not call.done():
                call.cancel()
                await asyncio.shield(_ended(call))
            call.release()

    async def as_completed(
        self,
        branches: Sequence[Branch],
        params: DecodeParams | None = None,
        *,
        cancel: Cancel | None = None,
        **fields: Unpack[DecodeFields],
    ) -> AsyncIterator[tuple[int, Generation]]:
        """Decodes all in shared steps, and yields (index, generation) as each one ends."""

        async def one(index: int, branch: Branch) -> tuple[int, Generation]:
            return index, await self.decode(branch, params, cancel=cancel, **fields)

        tasks = [asyncio.ensure_future(one(i, branch)) for i, branch in enumerate(branches)]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def score(
        self, branches: Sequence[Branch], continuations: Sequence[Prompt]
    ) -> list[list[Score]]:
        """See Session.score."""
        call = _core.submit_score(self._handle, branches, continuations)
        await _ended(call)
        return call.scores()

    async def expand(
        self, branches: Sequence[Branch], *, top: int = 0, min_prob: float = 0.0
    ) -> list[list[Branch]]:
        """See Session.expand."""
        call = _core.submit_expand(self._handle, branches, top, min_prob)
        await _ended(call)
        return call.children()

    async def run_tree(
        self,
        strategy: Strategy,
        prompt: Prompt | Branch,
        *,
        constraint: Constraint | None = None,
        trace: str | os.PathLike[str] | None = None,
        progress: bool = False,
    ) -> SearchResult:
        """See Session.run_tree. The search has a thread of its own; its steps are shared.

        Judgement.evaluate may be a coroutine function here: it runs in the event loop. A strategy
        of one's own that is to end with its task has an attribute `cancel`, a Cancel, which is then
        cancelled; without, its end is waited for.
        """
        from dendrite import search

        cancel = Cancel()
        tasks = EvaluatorTasks(asyncio.get_running_loop())

        def end() -> None:
            cancel.cancel()
            tasks.cancel()
            search.cancel_own(strategy)

        return await _in_thread(
            lambda: search.run_tree(
                self._session,
                strategy,
                prompt,
                constraint=constraint,
                trace=trace,
                progress=progress,
                cancel=cancel,
                tasks=tasks,
            ),
            end,
        )


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


async def _in_thread(function: Callable[[], T], cancel: Callable[[], object]) -> T:
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

    threading.Thread(target=run, name="dendrite-search", daemon=True).start()
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
