"""A worker's place: the actor that is there now, how busy it is, and how often it died."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayActorError

from dendrite import Error
from dendrite.ray.route import Prefixes


class WorkerLost(Error):
    """A worker died in a call that cannot be repeated, or more often than it may."""


class Place:
    """Where a worker is. Actors come and go; who calls one holds on to it, and says `died` of the
    very one that did not answer."""

    def __init__(self, index: int, spawn: Callable[[], Any], max_restarts: int) -> None:
        self.index = index
        self.prefixes = Prefixes(1)
        self.queue = 0  # calls and searches that run or wait here, and sessions about to begin
        self.sessions = 0
        self._spawn = spawn
        self._max_restarts = max_restarts
        self._deaths = 0
        self._is_closed = False
        self._lock = threading.Lock()
        self._actor: Any = spawn()

    @property
    def actor(self) -> Any:
        """Raises WorkerLost where there is none any more, and Error where the pool was closed."""
        actor = self._actor
        if self._is_closed:
            raise Error("the pool was closed; expected an open one")
        if actor is None:
            raise WorkerLost(
                f"worker {self.index} died {self._deaths} times; expected max_restarts="
                f"{self._max_restarts} to be enough. Ray's logs tell what killed it"
            )
        return actor

    @property
    def is_alive(self) -> bool:
        """Whether there is an actor; it may have died without anybody knowing."""
        return self._actor is not None

    def ask(self, method: str) -> Any:
        """What a method of the worker says that may be asked twice."""
        while True:
            actor = self.actor
            try:
                return ray.get(getattr(actor, method).remote())
            except RayActorError:
                self.died(actor)

    def died(self, actor: Any) -> None:
        """`actor` does not answer: afterwards there is a new one, or none."""
        with self._lock:
            if self._actor is not actor:
                return  # somebody else has seen to it
            ray.kill(actor)  # cut off is not dead, and nobody must hear of it again
            self._deaths += 1
            self.prefixes.clear()
            self._actor = self._spawn() if self._deaths <= self._max_restarts else None

    def close(self) -> None:
        """Ends the actor; there will be no other."""
        with self._lock:
            if self._actor is not None and ray.is_initialized():
                ray.kill(self._actor)
            self._actor = None
            self._is_closed = True

    def count(self, *, queue: int = 0, sessions: int = 0) -> None:
        """More of these, or fewer."""
        with self._lock:
            self.queue += queue
            self.sessions += sessions

    @contextmanager
    def queued(self) -> Iterator[None]:
        """While a call runs or waits here."""
        self.count(queue=1)
        try:
            yield
        finally:
            self.count(queue=-1)
