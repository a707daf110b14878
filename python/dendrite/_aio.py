"""Sessions for asyncio: the engine's own thread computes for all tasks in shared steps."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from dendrite import _core
from dendrite._aio_calls import EvaluatorTasks, ended, in_context, in_thread
from dendrite._aio_compose import AsyncComposeCalls
from dendrite._aio_generate import AsyncGenerateCalls
from dendrite._aio_stream import AsyncStream
from dendrite._core import Branch, Cancel, Generation, KvShortage, Score, Stats, TokenEvent
from dendrite._params import DecodeFields, DecodeParams, native
from dendrite._types import Prompt

if TYPE_CHECKING:
    from dendrite._constraint import Constraint
    from dendrite._engine import Engine
    from dendrite._session import Session, Strategy
    from dendrite.search import SearchResult


class AsyncSession(AsyncGenerateCalls, AsyncComposeCalls):
    """The computing calls of a session for asyncio; see Session.aio.

    It has all that Session has, and what takes time is awaited. Calls take the arguments of
    Session's. Tasks share the engine's steps; what they draw does not depend on it. A task that is
    cancelled leaves with the next step: when CancelledError comes out, its branches are free.
    Callbacks run in the engine's thread, with the submitter's context variables, and hold up all
    others. `async with` closes the session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._handle = session._handle
        session.engine._handle.start()

    @property
    def session(self) -> Session:
        """The session."""
        return self._session

    @property
    def aio(self) -> AsyncSession:
        """Itself."""
        return self

    @property
    def engine(self) -> Engine:
        """The engine that computes."""
        return self._session.engine

    @property
    def seed(self) -> int:
        """What all its draws come from, together with streams and tokens."""
        return self._session.seed

    @property
    def closed(self) -> bool:
        """Whether it was closed, by itself or with its engine."""
        return self._session.closed

    @property
    def shortage(self) -> KvShortage | None:
        """See Session.shortage."""
        return self._session.shortage

    async def prefill(
        self,
        prompt: Prompt,
        *,
        stream: int | None = None,
        add_special: bool | None = None,
        salt: str = "",
        cancel: Cancel | None = None,
    ) -> Branch:
        """See Session.prefill."""
        call = _core.submit_prefill(self._handle, prompt, stream, add_special, salt, cancel)
        await ended(call)
        return call.branch()

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
            in_context(on_token),
            in_context(on_step),
            in_context(enough),
            cancel,
            None,
            0,
        )
        await ended(call)
        out = call.generations()
        return out[0] if isinstance(branches, Branch) else out

    def stream(
        self,
        branches: Branch | Sequence[Branch],
        params: DecodeParams | None = None,
        *,
        cancel: Cancel | None = None,
        **fields: Unpack[DecodeFields],
    ) -> AsyncStream:
        """See Session.stream; leaving the loop over it, or closing it, ends the call."""
        made = native(params, fields)

        def submit(inbox: _core.Inbox, number: int) -> _core.Pending:
            return _core.submit_decode(
                self._handle, branches, made, None, None, None, cancel, inbox, number
            )

        return AsyncStream(submit)

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

    async def decode_step(
        self, branch: Branch, params: DecodeParams | None = None, **fields: Unpack[DecodeFields]
    ) -> int | None:
        """See Session.decode_step."""
        fields["max_tokens"] = 1
        ids = (await self.decode(branch, params, **fields)).ids
        return ids[0] if ids else None

    async def score(
        self,
        branches: Sequence[Branch],
        continuations: Sequence[Prompt],
        *,
        top_logprobs: int = 0,
    ) -> list[list[Score]]:
        """See Session.score."""
        call = _core.submit_score(self._handle, branches, continuations, top_logprobs)
        await ended(call)
        return call.scores()

    async def expand(
        self, branches: Sequence[Branch], *, top: int = 0, min_prob: float = 0.0
    ) -> list[list[Branch]]:
        """See Session.expand."""
        call = _core.submit_expand(self._handle, branches, top, min_prob)
        await ended(call)
        return call.children()

    async def distributions(self, branches: Sequence[Branch]) -> NDArray[np.float32]:
        """See Session.distributions."""
        return await in_thread(lambda: self._session.distributions(branches), lambda: None)

    def prune(self, branches: Iterable[Branch]) -> None:
        """See Session.prune; it waits for nothing."""
        self._session.prune(branches)

    async def save(
        self,
        path: str | os.PathLike[str],
        branches: Sequence[Branch] = (),
        *,
        attachment: str = "",
        kv: bool = True,
    ) -> None:
        """See Session.save."""
        await in_thread(
            lambda: self._session.save(path, branches, attachment=attachment, kv=kv), lambda: None
        )

    async def snapshot(
        self, branches: Sequence[Branch] = (), *, attachment: str = "", kv: bool = True
    ) -> bytes:
        """See Session.snapshot."""
        return await in_thread(
            lambda: self._session.snapshot(branches, attachment=attachment, kv=kv), lambda: None
        )

    def stats(self) -> Stats:
        """See Session.stats."""
        return self._session.stats()

    async def close(self) -> None:
        """See Session.close."""
        await in_thread(self._session.close, lambda: None)

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

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

        return await in_thread(
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
