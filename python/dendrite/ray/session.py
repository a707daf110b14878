"""Handles to what lives in workers: sessions and branches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from dendrite import Constraint, DecodeParams, Error, Finish, Prompt
from dendrite.ray.part import Part
from dendrite.ray.wire import Call, Generation, Ref, Score, convert, unpack

if TYPE_CHECKING:
    from dendrite.ray.pool import Pool
    from dendrite.search import SearchResult

Result = TypeVar("Result")


class PoolBranch:
    """A branch in a worker: the session's part that it is in, and its id. The words of
    dendrite.Branch; what is read is asked of the worker. Dropping the handle prunes the branch with
    the next call."""

    def __init__(self, part: Part, id: int) -> None:
        self._part = part
        self._id = id
        part.handles[id] = self

    @property
    def id(self) -> int:
        """As dendrite.Branch.id; 0 for an empty handle."""
        return self._id

    def __bool__(self) -> bool:
        """Whether it is live: not pruned."""
        return self._id != 0

    @property
    def worker(self) -> int:
        """The number of the worker that it is in."""
        return self._part.place.index

    @property
    def text(self) -> str:
        """The text of all tokens after the prompt, without special tokens."""
        return cast(str, self._read("text"))

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [length], prompt included."""
        return cast("NDArray[np.int32]", self._read("tokens"))

    @property
    def logprob(self) -> float:
        """The sum over the tokens that decode, expand or select chose."""
        return cast(float, self._read("logprob"))

    @property
    def finish(self) -> Finish:
        """How its last decode call ended."""
        return cast(Finish, self._read("finish"))

    @property
    def constraint(self) -> Constraint | None:
        """What it is under now, see constrain; None: free."""
        return cast("Constraint | None", self._read("constraint"))

    @property
    def is_accepted(self) -> bool:
        """Its constrained text is whole: it may end here."""
        return cast(bool, self._read("is_accepted"))

    def __len__(self) -> int:
        """Tokens, prompt included."""
        return cast(int, self._read("len"))

    @overload
    def fork(self) -> PoolBranch: ...
    @overload
    def fork(self, count: int) -> list[PoolBranch]: ...
    def fork(self, count: int | None = None) -> PoolBranch | list[PoolBranch]:
        """Another branch at the same point, with a random stream of its own; with a count, a list
        of so many."""
        return cast("PoolBranch | list[PoolBranch]", self._call("fork", count))

    def at(self, length: int) -> PoolBranch:
        """A fork from the past: the first `length` tokens."""
        return cast(PoolBranch, self._call("at", length))

    def append(self, what: Prompt) -> Self:
        """Adds a text, without special tokens, or ids. Returns the branch."""
        self._call("append", what)
        return self

    def constrain(self, constraint: Constraint | None) -> Self:
        """From here on its text must be what the constraint says; None frees it. Returns the
        branch."""
        self._call("constrain", constraint)
        return self

    def score(self, continuations: Sequence[Prompt], *, top_logprobs: int = 0) -> list[Score]:
        """Log-probs of continuations; the branch is unchanged. `top_logprobs`: see Score.top."""
        return cast("list[Score]", self._call("score", continuations, top_logprobs=top_logprobs))

    def select(self, options: Sequence[str]) -> int | None:
        """Appends the likeliest of the options and returns its index, see Branch.select."""
        return cast("int | None", self._call("select", options))

    def expand(self, *, top: int = 0, min_prob: float = 0.0) -> list[PoolBranch]:
        """Children for the likeliest next tokens, see Branch.expand."""
        return cast("list[PoolBranch]", self._call("expand", top=top, min_prob=min_prob))

    def prune(self) -> None:
        """Frees what only this branch holds; the handle is empty afterwards."""
        if self._id:
            self._call("prune")
            self._empty()

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return _call(self._part, Call(method, self._live(), args, kwargs))

    def _read(self, name: str) -> Any:
        return self._part.read(Call(name, self._live()))

    def _live(self) -> int:
        if not self._id:
            raise Error("the branch was pruned; expected a live one")
        return self._id

    def _empty(self) -> None:
        self._id = 0

    def __del__(self) -> None:
        if getattr(self, "_id", 0):
            self._part.drops.append(self._id)

    def __reduce__(self) -> Any:
        raise TypeError("a PoolBranch cannot be pickled: its session is this process's")

    def __repr__(self) -> str:
        return f"<PoolBranch {self._id} in worker {self.worker}>" if self else "<PoolBranch: empty>"


class PoolSession:
    """A session in a worker; made by Pool.session. The words of dendrite.Session.

    It stays in its worker until `move` or `scatter`. Calls of a session run one after another;
    several sessions' calls share the steps of their workers. Functions that are given to a call
    (`enough`, a strategy's) run in the worker; where that dies meanwhile, the call raises
    WorkerLost and the session is as before. All other calls survive their worker.
    """

    def __init__(self, pool: Pool, part: Part, seed: int) -> None:
        self._pool = pool
        self._parts = [part]
        self._seed = seed

    @property
    def seed(self) -> int:
        """What all its draws come from, together with streams and tokens."""
        return self._seed

    @property
    def workers(self) -> list[int]:
        """Where its parts are; first the one that gets its prompts."""
        return [part.place.index for part in self._parts]

    def prefill(
        self, prompt: Prompt, *, stream: int | None = None, add_special: bool | None = None
    ) -> PoolBranch:
        """Computes a prompt and returns its branch, see Session.prefill."""
        part = self._parts[0]
        kwargs = {"stream": stream, "add_special": add_special}
        branch = _call(part, Call("prefill", args=(prompt,), kwargs=kwargs))
        pages = self._pool.pages(prompt)
        part.prompts.append(pages)
        part.place.prefixes.add(pages)
        return cast(PoolBranch, branch)

    @overload
    def decode(
        self, branches: PoolBranch, params: DecodeParams | None = None, **kwargs: Any
    ) -> Generation: ...
    @overload
    def decode(
        self, branches: Sequence[PoolBranch], params: DecodeParams | None = None, **kwargs: Any
    ) -> list[Generation]: ...
    def decode(
        self,
        branches: PoolBranch | Sequence[PoolBranch],
        params: DecodeParams | None = None,
        **kwargs: Any,
    ) -> Generation | list[Generation]:
        """Generates on all branches, those of each worker in one batch; keywords as those of
        dendrite.Session.decode. With functions, all branches must be in one worker: what `enough`
        ends is one batch."""
        several = [branches] if isinstance(branches, PoolBranch) else list(branches)
        ahead: Sequence[PoolBranch] = kwargs.pop("ahead", ())
        if (
            len(_grouped(several)) > 1
            and not Call("decode", args=(params,), kwargs=kwargs).is_data()
        ):
            raise Error(
                "decode: got functions and branches of several workers; expected those of one"
            )

        def decode(part: Part, here: Sequence[PoolBranch]) -> list[Generation]:
            near = [branch for branch in ahead if branch._part is part]
            call = Call("decode", args=(list(here), params), kwargs={**kwargs, "ahead": near})
            return cast("list[Generation]", _call(part, call))

        out = self._by_part(several, decode)
        for branch, generation in zip(several, out, strict=True):
            if generation.finish is Finish.ABANDONED:
                branch._empty()
        return out[0] if isinstance(branches, PoolBranch) else out

    def score(
        self,
        branches: Sequence[PoolBranch],
        continuations: Sequence[Prompt],
        *,
        top_logprobs: int = 0,
    ) -> list[list[Score]]:
        """Log-probs of the same continuations after each branch: result[branch][continuation].

        top_logprobs: so many of the likeliest tokens are told in each place (Score.top).
        """
        more = {"top_logprobs": top_logprobs}
        return self._by_part(
            branches,
            lambda part, here: _call(
                part, Call("score", args=(list(here), continuations), kwargs=more)
            ),
        )

    def expand(
        self, branches: Sequence[PoolBranch], *, top: int = 0, min_prob: float = 0.0
    ) -> list[list[PoolBranch]]:
        """Children of each branch for its likeliest next tokens, see Session.expand."""
        kwargs = {"top": top, "min_prob": min_prob}
        return self._by_part(
            branches,
            lambda part, here: _call(part, Call("expand", args=(list(here),), kwargs=kwargs)),
        )

    def prune(self, branches: Iterable[PoolBranch]) -> None:
        """Prunes many at once; empty ones are skipped."""
        live = [branch for branch in branches if branch]

        def prune(part: Part, here: Sequence[PoolBranch]) -> Sequence[PoolBranch]:
            _call(part, Call("prune", args=(list(here),)))
            return here

        for branch in self._by_part(live, prune):
            branch._empty()

    def run_tree(
        self,
        strategy: Any,
        prompt: Prompt | PoolBranch,
        *,
        constraint: Constraint | None = None,
    ) -> SearchResult:
        """Runs a search from a prompt, or from a branch, which is then the search's own, inside
        the worker; see Session.run_tree. The result's branches are PoolBranches."""
        part = prompt._part if isinstance(prompt, PoolBranch) else self._parts[0]
        call = Call("run_tree", args=(strategy, prompt), kwargs={"constraint": constraint})
        result = _call(part, call)
        if isinstance(prompt, PoolBranch):
            prompt._empty()
        return cast("SearchResult", result)

    def move(self, worker: int, *, kv: bool = True) -> None:
        """Takes all of it to another worker: a snapshot, there before it is gone here. kv=False
        leaves K and V behind, which are computed again when next needed: they are most of the
        bytes. The tokens to come are the same."""
        place = self._pool.place(worker)
        for part in self._parts:
            part.move(place, kv)

    def scatter(
        self, branches: Sequence[PoolBranch], workers: Sequence[int], *, kv: bool = True
    ) -> None:
        """Spreads branches over workers, neighbours together: each worker's become a part of the
        session that lives there, with a budget of its own. The handles stay; calls with branches
        of several parts run in all their workers at once. `kv`: with K and V, see Session.save."""
        if not workers:
            raise Error("scatter: got no worker; expected one at least")
        branches = list(branches)
        for n, worker in enumerate(workers):
            place = self._pool.place(worker)
            begin = n * len(branches) // len(workers)
            end = (n + 1) * len(branches) // len(workers)
            for part, here in _grouped(branches[begin:end]):
                if part.place is place:
                    continue
                new = part.split(self._pool.next_key(), [b.id for b in here], place, kv)
                self._parts.append(new)
                for branch in here:
                    branch._part = new
                    new.handles[branch.id] = branch

    def close(self) -> None:
        """Ends it, wherever it is; its branches' handles are of no use afterwards."""
        for part in self._parts:
            part.close()

    def _by_part(
        self,
        branches: Sequence[PoolBranch],
        call: Callable[[Part, Sequence[PoolBranch]], Sequence[Result]],
    ) -> list[Result]:
        """`call` for each part's branches, in all of their workers at once; results in order."""
        groups = _grouped(branches)
        for part, (stranger, *_) in groups:
            if part not in self._parts:
                raise Error(f"got {stranger} of another session; expected branches of this one")
        if len(groups) == 1:
            return list(call(*groups[0]))
        done = list(self._pool.threads.map(lambda group: call(*group), groups))
        result = {
            id(branch): one
            for (_, here), several in zip(groups, done, strict=True)
            for branch, one in zip(here, several, strict=True)
        }
        return [result[id(branch)] for branch in branches]

    def __enter__(self) -> PoolSession:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PoolSession: seed {self._seed}, workers {self.workers}>"


def _grouped(branches: Sequence[PoolBranch]) -> list[tuple[Part, list[PoolBranch]]]:
    groups: dict[Part, list[PoolBranch]] = {}
    for branch in branches:
        groups.setdefault(branch._part, []).append(branch)
    return list(groups.items())


def _call(part: Part, call: Call) -> Any:
    """A call of handles: they go as references, and come as handles."""

    def refer(item: Any) -> Any:
        if not isinstance(item, PoolBranch):
            return item
        if item._part is not part:
            raise Error("got branches of several sessions or workers; expected those of one")
        return Ref(item._live())

    def handle(ref: Ref) -> PoolBranch:
        return cast(PoolBranch, part.handles.get(ref.id)) or PoolBranch(part, ref.id)

    args, kwargs = convert(call.args, refer), convert(dict(call.kwargs), refer)
    return unpack(part.call(Call(call.method, call.on, args, kwargs)), handle)
