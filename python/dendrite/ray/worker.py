"""What runs inside an actor: one engine, and the sessions that live in it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import cloudpickle

from dendrite import Branch, Engine, Error, Session
from dendrite.ray.wire import Birth, Call, Ref, Reply, pack, unpack

_PROPERTIES = (
    *("len", "text", "tokens", "logprob", "finish"),
    *("constraint", "is_accepted"),
)


class _Live:
    """A session with the branches that the pool has handles of."""

    def __init__(self, session: Session, branches: Iterable[Branch]) -> None:
        self.session = session
        self.branches = {branch.id: branch for branch in branches}

    def run(self, call: Call) -> Reply:
        """What it raises is part of what came of it: the session may have changed before."""
        try:
            for id in call.drops:
                self._drop(id)
            args = unpack(call.args, self._branch)
            kwargs = unpack(dict(call.kwargs), self._branch)
            target: Any = self.session if call.on is None else self._branch(Ref(call.on))
            if call.method in _PROPERTIES:
                value = len(target) if call.method == "len" else getattr(target, call.method)
            else:
                value = getattr(target, call.method)(*args, **kwargs)
            if call.method in ("append", "constrain"):
                value = None  # the branch itself
            return Reply(value=pack(value, self._refer))
        except Exception as error:
            return Reply(error=_portable(error))
        finally:  # a prune, or others that were enough
            self.branches = {id: branch for id, branch in self.branches.items() if branch}

    def snapshot(self, ids: Sequence[int] | None, kv: bool) -> bytes:
        wanted = self.branches if ids is None else ids
        return self.session.snapshot([self._branch(Ref(id)) for id in wanted], kv=kv)

    def _refer(self, branch: Branch) -> Ref:
        if not branch:
            return Ref(0)
        self.branches[branch.id] = branch
        return Ref(branch.id)

    def _branch(self, ref: Ref) -> Branch:
        branch = self.branches.get(ref.id)
        if branch is None:
            raise Error(f"branch {ref.id} is not live; expected one that was not pruned")
        return branch

    def _drop(self, id: int) -> None:
        if branch := self.branches.pop(id, None):
            branch.prune()


class Worker:
    """An engine, and sessions by the pool's keys; of a session one call at a time."""

    def __init__(
        self, model: str, engine: Mapping[str, Any], spool: Path | None, numerics_key: str | None
    ) -> None:
        """`numerics_key`: of the worker that it takes the place of, if it does."""
        self._engine = Engine(model, **engine)
        key = self._engine.info.numerics_key
        if numerics_key not in (None, key):
            raise Error(f"a restarted worker computes by {key}; expected {numerics_key} as before")
        self._spool = spool
        self._sessions: dict[str, _Live] = {}

    def info(self) -> dict[str, Any]:
        """What the pool wants to know of it."""
        info = self._engine.info
        return {
            "numerics_key": info.numerics_key,
            "page_tokens": info.page_tokens,
            "kv_tokens": info.kv_tokens,
        }

    def stats(self) -> dict[str, Any]:
        """The engine's counters, and `pid`, its process."""
        return self._engine.stats().asdict() | {"pid": os.getpid()}

    def restore(
        self,
        key: str,
        birth: Birth,
        snapshot: bytes | str | None,
        journal: Sequence[tuple[Call, Reply]],
    ) -> None:
        """A session as it was: from a snapshot (or the file of one; None: from its birth), and the
        calls since. Raises Error where one of them gives another result than was delivered."""
        self.drop(key)
        if snapshot is None:
            live = _Live(self._engine.session(seed=birth.seed, budget=birth.budget), ())
        else:
            restored = self._engine.restore(snapshot)
            live = _Live(restored.session, restored.branches)
        for call, delivered in journal:
            again = live.run(call)
            if not again.same(delivered):
                live.session.close()
                raise Error(
                    f"replay of {call.method} gave {str(again)[:200]}; expected what was "
                    f"delivered, {str(delivered)[:200]}"
                )
        self._sessions[key] = live

    def call(self, key: str, call: Call, number: int | None) -> tuple[Reply, bytes | None]:
        """Runs a call; with a snapshot afterwards, of this number, where one is asked for."""
        live = self._sessions[key]
        reply = live.run(call)
        if number is None:
            return reply, None
        snapshot = live.snapshot(None, kv=False)
        if self._spool is not None:
            _write(spool_file(self._spool, key, number), snapshot)
            # The one before is what the pool goes by until it has this reply.
            spool_file(self._spool, key, number - 2).unlink(missing_ok=True)
        return reply, snapshot

    def snapshot(
        self, key: str, ids: Sequence[int] | None, kv: bool, begins: str | None
    ) -> tuple[None, bytes]:
        """Of these branches; None: of all. `begins`: the session whose first snapshot it is."""
        snapshot = self._sessions[key].snapshot(ids, kv)
        if self._spool is not None and begins is not None:
            _write(spool_file(self._spool, begins, 0), snapshot)
        return None, snapshot

    def drop(self, key: str) -> None:
        """Closes a session, if it is here."""
        if live := self._sessions.pop(key, None):
            live.session.close()

    def search(self, search: Callable[[Session, Any], Any], item: Any, seed: int) -> Reply:
        """`search(session, item)` in a session of its own."""
        try:
            with self._engine.session(seed=seed) as session:
                return Reply(value=search(session, item))
        except Exception as error:
            return Reply(error=_portable(error))


def spool_file(spool: Path, key: str, number: int) -> Path:
    """Where a session's snapshot of this number is."""
    return spool / f"{key}.{number}.snapshot"


def _write(path: Path, data: bytes) -> None:
    """As a whole or not at all."""
    part = path.with_suffix(".part")
    part.write_bytes(data)
    part.replace(path)


def _portable(error: Exception) -> Exception:
    """With its traceback as a note, which would not travel otherwise."""
    note = "in the worker:\n" + traceback.format_exc()
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        error = Error(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error
