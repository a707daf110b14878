"""The calls of asyncio's sessions for context that is composed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, Unpack, cast

from dendrite import _core
from dendrite._aio_calls import ended, in_thread
from dendrite._compose import AnyEdit, Composed, Mode, Piece, Repair, native_edits, native_spans
from dendrite._compose import native as native_compose
from dendrite._core import Branch, Cancel, Chunk, Estimate, Generation, TokenEvent
from dendrite._params import DecodeFields, DecodeParams
from dendrite._types import Prompt

if TYPE_CHECKING:
    from dendrite._aio import AsyncSession
    from dendrite._session import Session

T = TypeVar("T")


class AsyncComposeCalls:
    """AsyncSession's part for context that is composed of pieces; see dendrite.Session."""

    _handle: _core.SessionHandle
    _session: Session

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
        await ended(call)
        return call.chunk()

    async def compose(
        self,
        pieces: Sequence[Piece],
        *,
        repair: Repair | None = None,
        mode: Mode = "composed",
        target_kl: float = 0,
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> Composed:
        """See Session.compose.

        Branches that pieces are spans of are read at once: they may change, and go, meanwhile.
        """
        if target_kl > 0:
            return await self._estimated(
                lambda session, cancel: session.compose(
                    pieces, repair=repair, mode=mode, target_kl=target_kl,
                    exact_behind=exact_behind, cancel=cancel,
                ),
                cancel,
            )  # fmt: skip
        params = native_compose(repair, mode, 0, cancel, exact_behind)
        return await _composed(self._handle.submit_compose(pieces, params))

    async def generate_from_chunks(
        self,
        pieces: Sequence[Piece],
        params: DecodeParams | None = None,
        *,
        repair: Repair | None = None,
        mode: Mode = "composed",
        target_kl: float = 0,
        on_token: Callable[[TokenEvent], object] | None = None,
        on_step: Callable[[list[TokenEvent]], bool | None] | None = None,
        cancel: Cancel | None = None,
        **fields: Unpack[DecodeFields],
    ) -> Generation:
        """See Session.generate_from_chunks."""
        aio = cast("AsyncSession", self)
        composed = await self.compose(
            pieces, repair=repair, mode=mode, target_kl=target_kl, cancel=cancel
        )
        with composed.branch as branch:
            return await aio.decode(
                branch, params, on_token=on_token, on_step=on_step, cancel=cancel, **fields
            )

    async def edit(
        self,
        branch: Branch,
        edits: Sequence[AnyEdit],
        *,
        repair: Repair | None = None,
        mode: Mode = "composed",
        target_kl: float = 0,
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> Composed:
        """See Session.edit."""
        if target_kl > 0:
            return await self._estimated(
                lambda session, cancel: session.edit(
                    branch, edits, repair=repair, mode=mode, target_kl=target_kl,
                    exact_behind=exact_behind, cancel=cancel,
                ),
                cancel,
            )  # fmt: skip
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
        target_kl: float = 0,
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> Composed:
        """See Session.compact."""
        if target_kl > 0:
            return await self._estimated(
                lambda session, cancel: session.compact(
                    branch, keep, summary, repair=repair, mode=mode, target_kl=target_kl,
                    exact_behind=exact_behind, cancel=cancel,
                ),
                cancel,
            )  # fmt: skip
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
        target_kl: float = 0,
        exact_behind: bool = False,
        cancel: Cancel | None = None,
    ) -> Composed:
        """See Session.join."""
        if target_kl > 0:
            return await self._estimated(
                lambda session, cancel: session.join(
                    siblings, before_each=before_each, after_all=after_all, repair=repair,
                    mode=mode, target_kl=target_kl, exact_behind=exact_behind, cancel=cancel,
                ),
                cancel,
            )  # fmt: skip
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
        await ended(call)
        return [Composed(*one) for one in call.joins()]

    async def settle(self, branch: Branch, *, cancel: Cancel | None = None) -> Branch:
        """See Session.settle."""
        return await cast("AsyncSession", self).prefill(branch.tokens, cancel=cancel)

    async def audit(self, branch: Branch, *, cancel: Cancel | None = None) -> Estimate:
        """See Session.audit. It is several calls, which a thread waits for."""
        return await self._estimated(
            lambda session, cancel: session.audit(branch, cancel=cancel), cancel
        )

    async def _estimated(self, call: Callable[[Session, Cancel], T], cancel: Cancel | None) -> T:
        """What makes several calls of one, in a thread."""
        own = cancel or Cancel()
        return await in_thread(lambda: call(self._session, own), own.cancel)


async def _composed(call: _core.Pending) -> Composed:
    await ended(call)
    return Composed(*call.composed())
