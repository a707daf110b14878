"""One agent's tree with its budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from dendrite import _core, _doors
from dendrite._aio_calls import in_thread
from dendrite._core import Branch, Cancel, Generation, KvShortage, Score, Stats, TokenEvent
from dendrite._params import DecodeFields, DecodeParams, native
from dendrite._reply import ChatState
from dendrite._session_compose import ComposeCalls
from dendrite._session_generate import GenerateCalls
from dendrite._types import Prompt

if TYPE_CHECKING:
    from dendrite._aio import AsyncSession
    from dendrite._constraint import Constraint
    from dendrite._engine import Engine
    from dendrite.search import SearchResult


class Strategy(Protocol):
    """A search strategy: one of dendrite.search, or any object with this method."""

    def run(self, session: Session, root: Branch) -> SearchResult:
        """Searches from `root`, which is its own, by the calls of `session`."""


class Session(GenerateCalls, ComposeCalls):
    """One agent's tree with its budget; made by Engine.session.

    Calls may come from several threads and tasks, and those that compute share their steps with all
    others of the engine. While a branch is in a call, it may be forked and read; what would change
    it raises BranchBusy. `with` closes the session: all of its branches are pruned and their
    handles empty, wherever references to them hide.

    What several calls take: `branches`, one or a sequence of this session's; `params`, a
    DecodeParams, some fields of which keywords may replace; `cancel`, a Cancel that ends the call
    from anywhere; `on_token` and `on_step`, callbacks, see decode; `repair`, `mode`, `target_kl`
    and `exact_behind`, see compose.
    """

    def __init__(self, engine: Engine, handle: _core.SessionHandle, seed: int) -> None:
        self._engine = engine
        self._handle = handle
        self._seed = seed
        self._aio: AsyncSession | None = None
        self._chats: ChatState | None = None

    @property
    def engine(self) -> Engine:
        """The engine that computes."""
        return self._engine

    @property
    def seed(self) -> int:
        """What all its draws come from, together with streams and tokens."""
        return self._seed

    @property
    def aio(self) -> AsyncSession:
        """The same calls for asyncio."""
        if self._aio is None:
            from dendrite._aio import AsyncSession

            self._aio = AsyncSession(self)
        return self._aio

    @property
    def _chat_state(self) -> ChatState:
        if self._chats is None:
            self._chats = ChatState(self._engine)
        return self._chats

    @property
    def closed(self) -> bool:
        """Whether it was closed, by itself or with its engine."""
        return self._handle.closed

    @property
    def shortage(self) -> KvShortage | None:
        """Why a call of this session last ended for want of KV pages; None: none ever did."""
        return self._handle.shortage()

    def prefill(
        self,
        prompt: Prompt,
        *,
        stream: int | None = None,
        add_special: bool | None = None,
        salt: str = "",
        cancel: Cancel | None = None,
    ) -> Branch:
        """Computes a prompt and returns its branch.

        Pages of its longest known prefix are reused. `stream`: its random stream, to continue that
        of another branch. `add_special`: of a text, BOS and the like, as the tokenizer says; None:
        yes, but for what Engine.render_chat gave, which has them. `salt`: pages are shared, and
        found, among prompts of one salt alone, so that nobody who has another learns by the time
        that a prompt takes whether it was computed before; no result depends on it, and forks have
        their branch's. `cancel`: ends the call from anywhere. Raises Error for an empty prompt, an
        id outside the vocabulary, or a prompt that can never fit.
        """
        return self._handle.prefill(prompt, stream, add_special, salt, cancel)

    @overload
    def decode(
        self,
        branches: Branch,
        params: DecodeParams | None = None,
        *,
        ahead: Sequence[Branch] = (),
        on_token: Callable[[TokenEvent], object] | None = None,
        on_step: Callable[[list[TokenEvent]], bool | None] | None = None,
        enough: Callable[[int, Generation], bool] | None = None,
        cancel: Cancel | None = None,
        **fields: Unpack[DecodeFields],
    ) -> Generation: ...
    @overload
    def decode(
        self,
        branches: Sequence[Branch],
        params: DecodeParams | None = None,
        *,
        ahead: Sequence[Branch] = (),
        on_token: Callable[[TokenEvent], object] | None = None,
        on_step: Callable[[list[TokenEvent]], bool | None] | None = None,
        enough: Callable[[int, Generation], bool] | None = None,
        cancel: Cancel | None = None,
        **fields: Unpack[DecodeFields],
    ) -> list[Generation]: ...
    def decode(
        self,
        branches: Branch | Sequence[Branch],
        params: DecodeParams | None = None,
        *,
        ahead: Sequence[Branch] = (),
        on_token: Callable[[TokenEvent], object] | None = None,
        on_step: Callable[[list[TokenEvent]], bool | None] | None = None,
        enough: Callable[[int, Generation], bool] | None = None,
        cancel: Cancel | None = None,
        **fields: Any,
    ) -> Generation | list[Generation]:
        """Generates on all branches in one batch: shared pages are read once a step.

        The results are in the order of `branches` and do not depend on it, nor on who else is in
        it. Keywords are fields of DecodeParams and replace those of `params`.

        ahead: branches that will probably be decoded next with the same parameters; where steps
            have slack, their tokens are drawn along and kept aside.
        on_token: called for every token, in branch order within a step.
        on_step: called with all tokens of a step; False ends the call with Finish.CANCELLED.
        enough: called for each branch that ended by itself, with its index and what it generated;
            True: every branch that was not shown is pruned within the same step.
        cancel: ends the call from anywhere.

        Callbacks run in this thread; they may fork and read branches, and what they raise ends the
        call and comes out of it. Tokens that were generated until then stay.
        """
        out = self._handle.decode(
            branches, native(params, fields), ahead, on_token, on_step, enough, cancel
        )
        return out[0] if isinstance(branches, Branch) else out

    def decode_step(
        self, branch: Branch, params: DecodeParams | None = None, **fields: Unpack[DecodeFields]
    ) -> int | None:
        """One token; None when budget, pages or cancellation forbid it (see branch.finish)."""
        fields["max_tokens"] = 1
        out = self._handle.decode([branch], native(params, fields), (), None, None, None, None)
        return out[0].ids[0] if out[0].ids else None

    def stream(
        self,
        branches: Branch | Sequence[Branch],
        params: DecodeParams | None = None,
        *,
        cancel: Cancel | None = None,
        **fields: Unpack[DecodeFields],
    ) -> Generator[list[TokenEvent], None, list[Generation]]:
        """Generates like decode, and yields the tokens of each step as a list.

        What it returns (`generations = yield from session.stream(...)`) is what was generated on
        each branch, with its log-probs where they are asked for.

        Leaving the loop over it, or closing it, ends the call with the step: the branches are free
        then. Where the engine's thread makes the steps (aio starts it), they have all tokens that
        had been generated by then.
        """
        call = _core.submit_decode(
            self._handle, branches, native(params, fields), None, None, None, cancel, None, 0
        )
        try:
            while steps := call.next_steps():
                yield from steps
            return call.generations()
        finally:
            call.cancel_and_wait()

    def score(
        self,
        branches: Sequence[Branch],
        continuations: Sequence[Prompt],
        *,
        top_logprobs: int = 0,
    ) -> list[list[Score]]:
        """Log-probs of the same continuations after each branch, in one batch.

        result[branch][continuation]; the branches are unchanged. Texts are encoded as what follows
        each (Branch.encode).

        top_logprobs: so many of the likeliest tokens are told in each place (Score.top).
        """
        return self._handle.score(branches, continuations, top_logprobs)

    def expand(
        self, branches: Sequence[Branch], *, top: int = 0, min_prob: float = 0.0
    ) -> list[list[Branch]]:
        """Children of each branch for its likeliest next tokens.

        At most `top` (0: no limit), each of at least `min_prob`; one of the two must be > 0.
        """
        return self._handle.expand(branches, top, min_prob)

    def distributions(self, branches: Sequence[Branch]) -> NDArray[np.float32]:
        """Logits of the next token: float32 [branches, vocab], one copy.

        Rows that budget or pages forbade computing are NaN. Branch.distribution has one without a
        copy.
        """
        return self._handle.distributions(branches)

    def prune(self, branches: Iterable[Branch]) -> None:
        """Prunes many at once, for about half of what one by one costs; empty ones are skipped."""
        self._handle.prune(branches)

    def run_tree(
        self,
        strategy: Strategy,
        prompt: Prompt | Branch,
        *,
        constraint: Constraint | None = None,
        trace: str | os.PathLike[str] | None = None,
        progress: bool = False,
    ) -> SearchResult:
        """Runs a search from a prompt, or from a branch, which is then the search's own.

        strategy: one of dendrite.search, or an object of your own, see Strategy.
        constraint: what each text of the search must be, from the prompt on (Branch.constrain of
            the root).
        trace: a file that gets the search on record, as JSON lines.
        progress: shows a progress bar (needs tqdm).
        """
        from dendrite import search

        return search.run_tree(
            self, strategy, prompt, constraint=constraint, trace=trace, progress=progress
        )

    def save(
        self,
        path: str | os.PathLike[str],
        branches: Sequence[Branch] = (),
        *,
        attachment: str = "",
        kv: bool = True,
    ) -> None:
        """Writes branches (none named: all that live, by id) to a file for Engine.restore.

        Tokens, K and V (kv=False: not these, they are computed again when next needed), random
        streams, budget, counters. A branch that is restored goes on as it would have without. The
        file at `path` is replaced as a whole or not at all. `attachment`: a text of your own, which
        Restored has.
        """
        self._handle.save(_doors.path("path", path), branches, attachment, kv)

    def snapshot(
        self, branches: Sequence[Branch] = (), *, attachment: str = "", kv: bool = True
    ) -> bytes:
        """What save writes, as bytes. `attachment`, `kv`: see save."""
        return self._handle.snapshot(branches, attachment, kv)

    def stats(self) -> Stats:
        """Counters since the session began."""
        return self._handle.stats()

    def close(self) -> None:
        """Ends its calls and prunes all of its branches, whoever has their handles."""
        self._handle.close()

    def __enter__(self) -> Session:
        return self

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await in_thread(self.close, lambda: None)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __copy__(self) -> Session:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Session cannot be pickled: it lives in its engine's memory. session.snapshot() "
            "makes bytes that Engine.restore takes back"
        )

    def __repr__(self) -> str:
        if self.closed:
            return "<Session: closed>"
        stats = self.stats()
        return f"<Session: {stats.branches_live} branches, {stats.tokens_computed} tokens computed>"
