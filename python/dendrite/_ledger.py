"""What a program does outside for branches: calls of tools, files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from dendrite import _core, _doors
from dendrite._core import Branch
from dendrite._session import Session


class Effect(NamedTuple):
    """Something that was done outside for a branch, at a place of its text.

    Branches that are forked from there have it on their path, too; those that were forked before,
    or are cut from an earlier place (Branch.at), have not.
    """

    id: int
    """Never reused by its ledger, and the same when that is restored: names files well."""
    parent: int | None
    """The one before it on its path: these ids are a branch's lineage."""
    length: int
    """Tokens of the branch when it was begun."""
    key: str
    """What was done, by the program's own name."""
    value: str | None
    """What came of it; None: it has not ended."""
    committed: bool
    """It is final."""
    saved: bool
    """Ledger.save wrote it: a branch that is restored may have it."""


class Ledger:
    """The effects of a session's branches: its program's calls of tools and states of files.

    It follows forks, rewinds and drops by itself, whoever makes them, from when it was made on.

        ledger = Ledger(session, on_abort=lambda effect: shutil.rmtree(effect.value))
        output = ledger.once(branch, "pytest", run_tests)  # a str; made once at this place
        ledger.commit(best)

    A branch that is restored repeats no call:

        session.save(file, attachment=ledger.save())
        restored = engine.restore(file)
        ledger = Ledger(restored.session, saved=restored.attachment, branches=restored.branches)

    saved: what `save` gave, for those of its branches that were restored, `branches`; those of
        others are left out. None: it begins empty.
    on_commit: called with an Effect that is final: a branch that has it was committed.
    on_abort: with one that has ended, that no branch has any more, and that was not committed: its
        files can go. Where it was `saved`, only if no snapshot that has it will be restored.

    Hooks are called in functions of the ledger, in their caller's thread, and may use it and the
    engine. What one raises comes out of that function. Any thread may use a ledger.
    """

    def __init__(
        self,
        session: Session,
        *,
        saved: str | None = None,
        branches: Sequence[Branch] = (),
        on_commit: Callable[[Effect], object] | None = None,
        on_abort: Callable[[Effect], object] | None = None,
    ) -> None:
        if not isinstance(session, Session):
            raise _doors.wrong("session", session, "a Session")
        self._handle = _core.LedgerHandle(
            session._handle,
            saved,
            branches,
            _with_effect(on_commit, "on_commit"),
            _with_effect(on_abort, "on_abort"),
        )

    def once(self, branch: Branch, key: str, call: Callable[[], str]) -> str:
        """What `call` returns, which is made once at this place.

        Where the branch has an effect by this key that was begun when it was as long as it is now,
        that one's value instead. Raises what `call` raises, and forgets the effect; and Error where
        there is one that has not ended: another thread is at it, or it was saved in between and
        nobody knows what came of it.
        """
        return self._handle.once(branch, key, call)

    async def once_async(self, branch: Branch, key: str, call: Callable[[], Awaitable[str]]) -> str:
        """The same by a coroutine function: what `call` returns is made once for this `key`.

        A task that is cancelled forgets the effect.
        """
        known = self.find(branch, key)
        if known is not None and known.value is not None:
            return known.value
        effect = self.begin(branch, key)
        try:
            value = await call()
            if not isinstance(value, str):
                raise _doors.wrong("call: what it returned", value, "a str")
        except BaseException:
            self.forget(effect)
            raise
        self.end(effect, value)
        return value

    def begin(self, branch: Branch, key: str) -> int:
        """The first half of `once`: from here on the branch has the effect, whose id it returns.

        For who saves in between, or calls elsewhere. Raises Error where the branch has one by this
        key here, ended or not.
        """
        return self._handle.begin(branch, key)

    def end(self, effect: int, value: str) -> None:
        """The second half. Raises Error for one that has ended, or is not known.

        effect: what begin returned. value: what came of it.
        """
        self._handle.end(effect, value)

    def forget(self, effect: int) -> None:
        """It has not ended and never will: as though it had not been begun. No hook is told.

        effect: what begin returned.
        """
        self._handle.forget(effect)

    def find(self, branch: Branch, key: str) -> Effect | None:
        """The effect by this key at the branch's end, see once."""
        found = self._handle.find(branch, key)
        return None if found is None else Effect(*found)

    def path(self, branch: Branch) -> list[Effect]:
        """All that the branch has, the first one first."""
        return [Effect(*each) for each in self._handle.path(branch)]

    def follow(self, branch: Branch, other: Branch) -> None:
        """A branch that is no fork goes on with what another has, instead of its own.

        For one that was composed, or of a prompt that was put together anew. other: as of its end.
        """
        self._handle.follow(branch, other)

    def commit(self, branch: Branch) -> None:
        """What the branch has is final, and stays so whatever becomes of it.

        Raises Error where one of them has not ended.
        """
        self._handle.commit(branch)

    def settle(self) -> None:
        """Calls hooks that are due.

        All functions that change something do so as well; branches that are dropped are told of at
        the next of these.
        """
        self._handle.settle()

    def save(self) -> str:
        """All effects of live branches as text, for Session.save's attachment or a part of it.

        What is begun between it and the save is not in it: a branch that is restored would begin
        it again.
        """
        return self._handle.save()


def _with_effect(
    hook: Callable[[Effect], object] | None, name: str
) -> Callable[[tuple[object, ...]], object] | None:
    if hook is None:
        return None
    if not callable(hook):
        raise _doors.wrong(name, hook, "a callable or None")
    return lambda parts: hook(Effect._make(parts))
