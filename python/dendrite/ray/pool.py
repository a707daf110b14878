"""The pool: workers, which session lives where, and what happens when a worker dies."""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import ray
from ray.exceptions import RayActorError

from dendrite import Budget, Engine, Error, Prompt, Session
from dendrite._engine import fresh_seed
from dendrite.ray.part import Keeping, Part
from dendrite.ray.place import Place, WorkerLost
from dendrite.ray.route import Load, Prefixes, choose, page_hashes
from dendrite.ray.session import PoolSession
from dendrite.ray.wire import Birth, Reply
from dendrite.ray.worker import Worker

Item = TypeVar("Item")
Found = TypeVar("Found")


class Pool:
    """Several workers, each with the whole model.

    model: a folder, or an id in the local Hugging Face cache, on every machine of the cluster.
    workers: how many actors. num_cpus, num_gpus: what Ray reserves for each; with a GPU, it makes
        one visible to it.
    engine: keywords of dendrite.Engine, for each worker. On a CPU, `threads` is num_cpus unless it
        says otherwise.
    checkpoint: when a session's state is saved: after "every_call" that changes it, after every
        n-th, or never (None); calls since are replayed. States are tokens and counters, without K
        and V, which a lost worker's sessions compute again. Calls with Python functions cannot be
        replayed, so after one there is always a checkpoint.
    spool: a folder that all machines share, which gets the states as well: states in memory are
        lost with the machine of their worker.
    max_restarts: how often each worker may die.
    concurrency: calls and searches that a worker runs at once; they share its steps.

    Starts Ray, without its dashboard, where that has not been done. Raises Error where workers do
    not compute the same bits.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        workers: int = 1,
        num_cpus: float = 1,
        num_gpus: float = 0,
        engine: Mapping[str, Any] | None = None,
        checkpoint: Literal["every_call"] | int | None = "every_call",
        spool: str | os.PathLike[str] | None = None,
        max_restarts: int = 3,
        concurrency: int = 8,
    ) -> None:
        if workers < 1:
            raise Error(f"workers: got {workers}; expected at least 1")
        if isinstance(checkpoint, int) and checkpoint < 1:
            raise Error(f'checkpoint: got {checkpoint}; expected "every_call", None or at least 1')
        name = os.fspath(model)
        self._text = Engine(name, weights=False)
        options = dict(engine or {})
        if options.get("device", "cpu") == "cpu":
            options.setdefault("threads", max(1, int(num_cpus)))
        self._own_ray = not ray.is_initialized()
        if self._own_ray:
            ray.init(include_dashboard=False)
        folder = Path(spool).absolute() if spool is not None else None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._keeping = Keeping(1 if checkpoint == "every_call" else checkpoint, folder)
        self._concurrency = concurrency
        self._max_restarts = max_restarts
        self.threads = ThreadPoolExecutor(4 * workers, "dendrite-pool")
        self._lock = threading.Lock()
        self._name = uuid.uuid4().hex[:12]
        self._keys = itertools.count(1)
        self._numerics: str | None = None
        actor = ray.remote(Worker).options(
            num_cpus=num_cpus, num_gpus=num_gpus, max_concurrency=concurrency
        )
        self._places = [
            Place(index, lambda: actor.remote(name, options, folder, self._numerics), max_restarts)
            for index in range(workers)
        ]
        try:
            self._page_tokens = self._check_workers()
        except BaseException:
            self.close()
            raise

    def _check_workers(self) -> int:
        try:
            infos = ray.get([place.actor.info.remote() for place in self._places])
        except RayActorError as error:
            raise Error(f"a worker could not load {self._text.info.model_path}: {error}") from error
        keys = [info["numerics_key"] for info in infos]
        for index, key in enumerate(keys):
            if key != keys[0]:
                raise Error(
                    f"worker {index} computes by {key}, worker 0 by {keys[0]}; expected equal "
                    "numerics keys: the same kind of machine for each"
                )
        self._numerics = keys[0]
        for place, info in zip(self._places, infos, strict=True):
            place.prefixes = Prefixes(info["kv_tokens"] // info["page_tokens"])
        return int(infos[0]["page_tokens"])

    def __len__(self) -> int:
        """Workers."""
        return len(self._places)

    def session(
        self, seed: int | None = None, prompt: Prompt = (), *, budget: Budget | None = None
    ) -> PoolSession:
        """A session, in the worker that has computed most of `prompt` (which is not prefilled by
        this), unless four more calls wait there than elsewhere. `seed` as Engine.session has it;
        `budget` goes with each part of the session, see PoolSession.scatter."""
        seed = fresh_seed() if seed is None else seed
        pages = self.pages(prompt)
        with self._lock:
            alive = self._alive()
            loads = [Load(p.prefixes.match(pages), p.queue, p.sessions) for p in alive]
            place = alive[choose(loads)]
            part = Part(self.next_key(), Birth(seed, budget), place, self._keeping)
        return PoolSession(self, part, seed)

    def run(
        self, search: Callable[[Session, Item], Found], items: Iterable[Item], *, seed: int = 0
    ) -> list[Found]:
        """`search(session, item)` for each of `items`, inside the workers; the results in order.

        The i-th gets a session of its own with the seed `seed + i`, so results do not depend on
        workers. They travel, and so must be plain values: not branches. A search whose worker dies
        is run again from its start: it should do nothing but return its result. What a search
        raises ends the run and comes out of it.
        """
        todo = deque(enumerate(items))
        found: dict[int, Found] = {}
        tries: dict[int, int] = {}
        running: dict[Any, tuple[int, Item, Place, Any]] = {}
        code = ray.put(search)
        try:
            while todo or running:
                while todo and (place := self._idle()) is not None:
                    index, item = todo.popleft()
                    actor = place.actor
                    reference = actor.search.remote(code, item, seed + index)
                    running[reference] = (index, item, place, actor)
                    place.count(queue=1)
                (reference,), _ = ray.wait(list(running), num_returns=1)
                index, item, place, actor = running.pop(reference)
                place.count(queue=-1)
                try:
                    reply: Reply = ray.get(reference)
                except RayActorError as error:
                    place.died(actor)
                    tries[index] = tries.get(index, 0) + 1
                    if tries[index] > self._max_restarts:
                        raise WorkerLost(f"item {index} lost {tries[index]} workers") from error
                    todo.appendleft((index, item))
                    continue
                if reply.error is not None:
                    raise reply.error
                found[index] = reply.value
        finally:
            for _, _, place, _ in running.values():
                place.count(queue=-1)
        return [found[index] for index in range(len(found))]

    def stats(self) -> list[dict[str, Any]]:
        """Of each worker that is alive: the engine's counters, and its `worker` number, `pid`,
        `queue` and `sessions`."""
        all_stats = []
        for place in self._places:
            if place.is_alive:
                own = {"worker": place.index, "queue": place.queue, "sessions": place.sessions}
                all_stats.append(place.ask("stats") | own)
        return all_stats

    def place(self, worker: int) -> Place:
        """A worker's place, by its number. Raises Error where there is none."""
        if not 0 <= worker < len(self._places):
            raise Error(f"worker: got {worker}; expected 0 to {len(self._places) - 1}")
        return self._places[worker]

    def pages(self, prompt: Prompt) -> list[bytes]:
        """What routing goes by: hashes of the prompt's full pages."""
        tokens = self._text.encode(prompt) if isinstance(prompt, str) else prompt
        return page_hashes(tokens, self._page_tokens)

    def next_key(self) -> str:
        """A name for a session that no other has, in the spool either."""
        return f"{self._name}-{next(self._keys)}"

    def _alive(self) -> list[Place]:
        """Workers that are there. Raises what Place.actor does where none is."""
        alive = [place for place in self._places if place.is_alive]
        if not alive:
            _ = self._places[0].actor
        return alive

    def _idle(self) -> Place | None:
        """The least busy worker that may take one search more."""
        place = min(self._alive(), key=lambda place: place.queue)
        return place if place.queue < self._concurrency else None

    def close(self) -> None:
        """Ends all workers and what lives in them."""
        for place in getattr(self, "_places", ()):
            place.close()
        self.threads.shutdown(wait=False)
        if self._own_ray and ray.is_initialized():
            ray.shutdown()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
