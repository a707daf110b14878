"""A session in one worker, or a part of one: what is needed to make it again, and where it is."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import ray
from ray.exceptions import ObjectLostError, RayActorError

from dendrite import Error
from dendrite.ray.place import Place, WorkerLost
from dendrite.ray.wire import Birth, Call, Ref, Reply
from dendrite.ray.worker import spool_file


@dataclass(frozen=True)
class Keeping:
    """What is kept of sessions, for all of a pool."""

    every: int | None  #: a snapshot after so many calls; None: only where replay is impossible
    spool: Path | None  #: where snapshots are written, too


class Part:
    """A session in one worker.

    Its state is, at any time: the last snapshot, and the journal, the calls since with what was
    delivered of them. Draws are counter-based, so replaying the journal gives the same tokens. It
    lives in one actor at most, `_home`; that is None where it was lost, or has not begun, or nobody
    knows how far its last call came (an interrupt). Then the next call makes it again first.
    """

    def __init__(
        self, key: str, birth: Birth, place: Place, keeping: Keeping, snapshot: Any = None
    ) -> None:
        self.key = key
        self.place = place
        self.handles: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.drops: list[int] = []  # branches whose handles are gone
        self.prompts: list[Sequence[bytes]] = []  # their pages, for routing
        self._birth = birth
        self._keeping = keeping
        self._snapshot = snapshot  # a reference to an actor's result, which outlives the actor
        self._number = 0  # of the snapshot
        self._journal: list[tuple[Call, Reply]] = []
        self._home: Any = None
        self._is_closed = False
        self._is_fresh = True
        self._lock = threading.RLock()
        place.count(queue=1, sessions=1)  # it is about to be called

    def call(self, call: Call) -> Any:
        """A call that may change the session; what it returns, in plain form, or raises."""
        with self._lock:
            drops, self.drops = tuple(self.drops), []
            call = dataclasses.replace(call, drops=drops)
            try:
                reply = self._run(call, self._next_snapshot(call))
            except BaseException:
                self.drops += drops  # where it is made again, they are there
                raise
            return self._result(reply)

    def read(self, call: Call) -> Any:
        """A call that changes nothing, and so is not remembered."""
        with self._lock:
            return self._result(self._run(call, None, remember=False))

    def move(self, place: Place, kv: bool) -> None:
        """To another worker: a snapshot here, a session there, and when it says so, none here; two
        of them would draw the same numbers."""
        with self._lock:
            self._check_open()
            if place is self.place:
                return
            actor = self._home
            if actor is not None and (snapshot := self._take(None, kv)) is not None:
                try:
                    self._settle(place, snapshot, [])
                except ObjectLostError:
                    self._home = None
                actor.drop.remote(self.key)
            else:
                self._home = None  # the next call makes it there
            self.place.count(sessions=-1, queue=-1 if self._is_fresh else 0)
            place.count(sessions=1, queue=1 if self._is_fresh else 0)
            self.place = place

    def split(self, key: str, ids: Sequence[int], place: Place, kv: bool) -> Part:
        """These branches as a session of their own in another worker. They are not here then."""
        with self._lock:
            self._check_open()
            while True:
                self._settle(self.place, self._snapshot, self._journal)
                if (snapshot := self._take(ids, kv, key)) is not None:
                    break
            part = Part(key, self._birth, place, self._keeping, snapshot)
            try:
                part._settle(place, snapshot, [])
            except BaseException:
                part.close()
                raise
            self.call(Call("prune", args=([Ref(id) for id in ids],)))
            return part

    def close(self) -> None:
        """Ends it, wherever it is."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._leave_queue()
            self.place.count(sessions=-1)
            if self._home is not None and self.place.is_alive and ray.is_initialized():
                self._home.drop.remote(self.key)
            self._home = self._snapshot = None
            self._journal.clear()
            if self._keeping.spool is not None:
                for number in range(self._number - 1, self._number + 2):
                    spool_file(self._keeping.spool, self.key, number).unlink(missing_ok=True)

    def __del__(self) -> None:
        """The session and its branches' handles are gone."""
        if hasattr(self, "_lock"):
            self.close()

    # -- calls

    def _run(self, call: Call, number: int | None, remember: bool = True) -> Reply:
        self._check_open()
        self._leave_queue()
        while True:
            self._settle(self.place, self._snapshot, self._journal)
            actor = self._home
            try:
                with self.place.queued():
                    ready, snapshot = actor.call.options(num_returns=2).remote(
                        self.key, call, number
                    )
                    reply: Reply = ray.get(ready)
            except RayActorError as error:
                self._lost(self.place, actor)
                if not call.is_data():
                    raise WorkerLost(
                        f"{call.method}: worker {self.place.index} died, and a call with Python "
                        "functions is not repeated; the session is as it was before it"
                    ) from error
                continue
            except BaseException:
                self._home = None
                raise
            if number is not None:
                self._snapshot, self._number, self._journal = snapshot, number, []
            elif remember:
                self._journal.append((call, reply))
            return reply

    def _next_snapshot(self, call: Call) -> int | None:
        """The number of the snapshot that is due after this call."""
        if not call.is_data():
            return self._number + 1
        every = self._keeping.every
        if every is None or not call.computes():
            return None
        before = sum(earlier.computes() for earlier, _ in self._journal)
        return self._number + 1 if before + 1 >= every else None

    def _settle(self, place: Place, snapshot: Any, journal: Sequence[tuple[Call, Reply]]) -> None:
        """Makes sure that it lives in the actor that is at this place now."""
        while self._home is not (actor := place.actor):
            try:
                self._restore(actor, snapshot, journal)
            except RayActorError:
                self._lost(place, actor)
                continue
            self._home = actor
            for pages in self.prompts:
                place.prefixes.add(pages)

    def _restore(self, actor: Any, snapshot: Any, journal: Sequence[tuple[Call, Reply]]) -> None:
        try:
            ray.get(actor.restore.remote(self.key, self._birth, snapshot, journal))
        except ObjectLostError as error:
            if snapshot is not self._snapshot:
                raise
            if self._keeping.spool is None:
                raise WorkerLost(
                    f"a session's snapshot was lost with the machine of worker {self.place.index}; "
                    "expected a folder to keep it in: Pool(spool=...)"
                ) from error
            file = str(spool_file(self._keeping.spool, self.key, self._number))
            ray.get(actor.restore.remote(self.key, self._birth, file, journal))

    def _take(self, ids: Sequence[int] | None, kv: bool, key: str | None = None) -> Any:
        """A reference to a snapshot of these branches (all); None where the worker died. `key`: it
        is kept in the spool as that session's first."""
        actor = self._home
        ready, snapshot = actor.snapshot.options(num_returns=2).remote(self.key, ids, kv, key)
        try:
            ray.get(ready)
        except RayActorError:
            self._lost(self.place, actor)
            return None
        return snapshot

    def _lost(self, place: Place, actor: Any) -> None:
        self._home = None
        place.died(actor)

    def _leave_queue(self) -> None:
        if self._is_fresh:
            self._is_fresh = False
            self.place.count(queue=-1)

    def _check_open(self) -> None:
        if self._is_closed:
            raise Error("the session was closed; expected an open one")

    @staticmethod
    def _result(reply: Reply) -> Any:
        if reply.error is not None:
            raise reply.error
        return reply.value
