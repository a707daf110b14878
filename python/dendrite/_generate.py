"""Many prompts: requests that enter the engine, where they wait for room, and come out as they end.

Who waits for steps is told apart from what is done with them: `Run` submits calls and takes what
has ended, for a thread that makes steps itself (_session_generate) and for an event loop that is
woken (_aio_generate).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dendrite import _core, _doors
from dendrite._core import Branch, Cancel, Error, Generation, TokenLogprob
from dendrite._params import DecodeFields, DecodeParams, native
from dendrite._types import Message, Prompt

if TYPE_CHECKING:
    from dendrite._engine import Engine
    from dendrite._session import Session

AnyPrompt: TypeAlias = Prompt | Sequence[Message]
"""A text, token ids, or the messages of a chat."""

MOST_BRANCHES = 512
"""That are in the engine at a time, where the caller does not say how many prompts."""


class GenerateFields(DecodeFields, total=False):
    """What generate and chat take as keywords, whatever they give; see Session.generate."""

    at_once: int | None
    progress: bool
    echo: bool
    echo_top: int
    cancel: Cancel | None


@dataclasses.dataclass(slots=True)
class Request:
    """A prompt with what is wanted of it."""

    index: int
    ids: NDArray[np.int32]
    params: _core.Params
    copies: int | None
    stream: int | None
    echo: bool
    echo_top: int


def requests_of(
    session: Session,
    prompts: Any,
    params: DecodeParams | Sequence[DecodeParams] | None,
    fields: Mapping[str, Any],
    *,
    n: int | None,
    at_once: int | None,
    seeds: Sequence[int | None] | None,
    echo: bool,
    echo_top: int,
) -> tuple[list[Request], bool]:
    """The requests of a call of generate, and whether `prompts` was one.

    Everything is looked at here, before anything is computed. Raises Error and TypeError, which
    name the prompt by its index.
    """
    engine = session.engine
    single = _is_one(prompts)
    given: list[AnyPrompt] = [prompts] if single else list(prompts)
    each = _for_each("params", params, len(given), DecodeParams)
    own_seeds = _for_each("seeds", seeds, len(given), int)
    for name, number in (("n", n), ("at_once", at_once)):
        if number is not None and not isinstance(number, (int, np.integer)):
            raise _doors.wrong(name, number, "an int or None")
    if not isinstance(echo, bool):
        raise _doors.wrong("echo", echo, "a bool")
    if isinstance(echo_top, bool) or not isinstance(echo_top, (int, np.integer)):
        raise _doors.wrong("echo_top", echo_top, "an int")
    if echo_top < 0:
        raise Error(f"generate: echo_top is {echo_top}; expected >= 0")
    if n is not None and n < 1:
        raise Error(f"generate: n is {n}; expected >= 1, or None for one without a list")
    if at_once is not None and at_once < 1:
        raise Error(f"generate: at_once is {at_once}; expected >= 1, or None: what fits")
    known: dict[int, _core.Params] = {}
    requests: list[Request] = []
    for index, prompt in enumerate(given):
        own = each[index]
        if id(own) not in known:
            known[id(own)] = native(own, fields)
        made, seed = known[id(own)], fields.get("seed", own.seed if own else None)
        if own_seeds[index] is not None:
            seed = own_seeds[index]
            made = native(own, {**fields, "seed": seed})
        ids = _ids_of(engine, prompt, index)
        requests.append(
            Request(
                index=index,
                ids=ids,
                params=made,
                copies=n,
                stream=_stream_of(ids) if seed is not None else None,
                echo=echo,
                echo_top=echo_top,
            )
        )
    for made in known.values():  # a call of no branches looks at its parameters, and does nothing
        _core.submit_decode(session._handle, [], made, None, None, None, None, None, 0).drop()
    return requests, single


def _is_one(prompts: Any) -> bool:
    if isinstance(prompts, str):
        return True
    if isinstance(prompts, np.ndarray):
        return prompts.ndim == 1
    if not isinstance(prompts, Sequence) or isinstance(prompts, (bytes, bytearray, memoryview)):
        expected = "a text, token ids, the messages of a chat, or a list of these"
        raise _doors.wrong("prompts", prompts, expected)
    return bool(prompts) and isinstance(prompts[0], (int, np.integer, Mapping))


def _for_each(name: str, value: Any, count: int, kind: type) -> list[Any]:
    """One for each prompt; what is not a list is for all."""
    if value is None or isinstance(value, kind):
        return [value] * count
    if not isinstance(value, Sequence) or isinstance(value, str):
        expected = f"one {kind.__name__}, or a list of them, one a prompt"
        raise _doors.wrong(name, value, expected)
    if len(value) != count:
        raise Error(f"generate: got {len(value)} {name} and {count} prompts; expected one each")
    for i, one in enumerate(value):
        if one is not None and not isinstance(one, kind):
            raise _doors.wrong(f"{name}[{i}]", one, kind.__name__)
    return list(value)


def _ids_of(engine: Engine, prompt: Any, index: int) -> NDArray[np.int32]:
    where = f"generate: prompt {index}"
    if isinstance(prompt, str):
        ids = engine.encode(prompt)
    elif isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
        ids = engine.encode(engine.render_chat(prompt), add_special=False)
    else:
        ids = _checked_ids(prompt, where, engine.info.vocab)
    if len(ids) == 0:
        raise Error(f"{where} has no tokens; expected at least one")
    if len(ids) > min(engine.info.max_positions, engine.info.kv_tokens):
        _check_length(engine, ids, where)
    return ids


def _check_length(engine: Engine, ids: NDArray[np.int32], where: str) -> None:
    """By the engine, which was told how long one may be; in a session that nobody else draws in."""
    with engine.session() as asked:
        try:
            _core.submit_prefill(asked._handle, ids, None, False, "", None).drop()
        except Error as error:
            raise Error(f"{where}: {str(error).removeprefix('prefill: ')}") from None


def _checked_ids(prompt: Any, where: str, vocab: int) -> NDArray[np.int32]:
    is_ids = isinstance(prompt, (Sequence, np.ndarray)) and not isinstance(
        prompt, (bytes, bytearray, memoryview)
    )
    array = np.asarray(prompt) if is_ids else np.zeros(0)
    if not is_ids or array.ndim != 1 or (array.size > 0 and array.dtype.kind not in "iu"):
        raise _doors.wrong(where, prompt, "a text, token ids (int), or the messages of a chat")
    if array.size > 0 and not 0 <= array.min() <= array.max() < vocab:
        at = int(np.argmax((array < 0) | (array >= vocab)))
        raise Error(f"{where}: token {at} is {array[at]}; expected 0 to {vocab - 1}")
    return array.astype(np.int32)


def _stream_of(ids: NDArray[np.int32]) -> int:
    """A random stream of these tokens alone, for a prompt whose draws a seed of its own decides."""
    return int.from_bytes(hashlib.blake2b(ids.tobytes(), digest_size=8).digest(), "little")


class _Live:
    """A request in the engine."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.call: _core.Pending | None = None
        self.next = ""  # what `call` is for
        self.root: Branch | None = None
        self.first: Branch | None = None
        self.branches: list[Branch] = []
        self.logprobs: list[float | None] | None = None
        self.top: list[list[TokenLogprob]] = []


Result: TypeAlias = list[Generation]
"""Of one request, as many as it wants."""


class Run:
    """The requests of one call of generate on their way. Used by one thread."""

    def __init__(
        self,
        session: Session,
        requests: Sequence[Request],
        at_once: int | None,
        cancel: Cancel | None,
        inbox: _core.Inbox,
        keep: Callable[[Branch], object] | None = None,
    ) -> None:
        """`inbox` gets numbers of calls that have ended: then `take` has something to do. `keep` is
        shown the branches of answers before they are pruned."""
        self._session = session
        self._waiting = deque(requests)
        self._at_once = at_once
        self._cancel = cancel
        self._inbox = inbox
        self._keep = keep
        self._cancelled = False
        self._live: dict[int, _Live] = {}
        self._branches = 0  # of those

    @property
    def running(self) -> bool:
        """Whether there is more to come."""
        return bool(self._live or self._waiting)

    def take(self) -> list[tuple[int, Result]]:
        """What has ended since, by index; those that wait take its place."""
        results: list[tuple[int, Result]] = []
        for number in self._inbox.take():
            live = self._live.get(number)
            if live is None or live.call is None or not live.call.done():
                continue
            if self._cancelled:
                self._drop(live)
            elif (result := self._go_on(live, live.call)) is not None:
                self._leave(live)
                results.append((number, result))
        while self._waiting and self._has_room(self._waiting[0]):
            self._enter(self._waiting.popleft())
        return results

    def _has_room(self, request: Request) -> bool:
        """Whether it may enter now; one always may. Who finds no pages then waits in the engine."""
        if not self._live or self._at_once is not None:
            return len(self._live) < (self._at_once or 1)
        return self._branches + (request.copies or 1) <= MOST_BRANCHES

    def _enter(self, request: Request) -> None:
        handle = self._session._handle
        live = self._live[request.index] = _Live(request)
        self._branches += request.copies or 1
        try:
            call = _core.submit_prefill(
                handle, request.ids, request.stream, False, "", self._cancel
            )
        except BaseException:
            self._leave(live)
            raise
        self._expect(live, call, "root")

    def _expect(self, live: _Live, call: _core.Pending, what: str) -> None:
        live.call, live.next = call, what
        call.on_done(self._inbox, live.request.index)
        if self._cancelled:  # by an interrupt, since this call began
            call.cancel()

    def _go_on(self, live: _Live, call: _core.Pending) -> Result | None:
        """Takes what the call gave, and submits the next one; a result after the last."""
        request, handle = live.request, self._session._handle
        live.call = None
        if live.next == "decode":
            generations = call.generations()
            if self._keep is not None:
                for branch in live.branches:
                    self._keep(branch)
            if live.logprobs is not None:
                ids: list[int] = request.ids.tolist()
                for generation in generations:
                    generation.__dict__.update(
                        _prompt_ids=ids, _prompt_logprobs=live.logprobs, _prompt_top=live.top
                    )
            return generations
        if live.next == "root":
            live.root = call.branch()
            if request.echo:
                live.logprobs = [None]
                live.top = [[]] if request.echo_top > 0 else []
            if request.echo and len(request.ids) > 1:
                first = _core.submit_prefill(handle, request.ids[:1], 0, False, "", self._cancel)
                self._expect(live, first, "first")
                return None
        elif live.next == "first":
            live.first = call.branch()
            score = _core.submit_score(handle, [live.first], [request.ids[1:]], request.echo_top)
            self._expect(live, score, "score")
            return None
        else:
            [[score_of_rest]] = call.scores()
            rest = score_of_rest.tokens or [float("nan")] * (len(request.ids) - 1)
            live.logprobs = [None, *rest]
            if request.echo_top > 0:
                live.top = [[], *(score_of_rest.top or [[] for _ in rest])]
            assert live.first is not None
            live.first.prune()
        assert live.root is not None
        if request.copies is None:
            live.branches = [live.root]
        else:
            live.branches = live.root.fork(request.copies)
        decode = _core.submit_decode(
            handle, live.branches, request.params, None, None, None, self._cancel, None, 0
        )
        self._expect(live, decode, "decode")
        return None

    def _leave(self, live: _Live) -> None:
        """Frees its pages; its place is another's."""
        del self._live[live.request.index]
        self._branches -= live.request.copies or 1
        for branch in (live.root, live.first, *live.branches):
            if branch is not None and branch:
                branch.prune()

    def _drop(self, live: _Live) -> None:
        """The same, and its call with what that gave."""
        if live.call is not None:
            live.call.cancel_and_wait()
            live.call.drop()
        self._leave(live)

    def cancel(self) -> None:
        """Ends what runs with the step, and lets nothing else in."""
        self._cancelled = True
        self._waiting.clear()
        for live in self._live.values():
            if live.call is not None:
                live.call.cancel()

    @property
    def ended(self) -> bool:
        """Whether all calls of those that are in have ended."""
        return all(live.call is None or live.call.done() for live in self._live.values())

    def close(self) -> None:
        """Cancels, waits until that has happened, and frees all pages."""
        self.cancel()
        for live in list(self._live.values()):
            self._drop(live)
