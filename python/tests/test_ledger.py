"""What is done outside for branches, from Python."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from conftest import PROMPT

from dendrite import Effect, Engine, Error, Ledger, Session


def keys(effects: list[Effect]) -> list[str]:
    return [effect.key for effect in effects]


def test_effects_go_with_forks_and_not_with_cuts(session: Session) -> None:
    ledger = Ledger(session)
    root = session.prefill(PROMPT)
    length = len(root)
    calls = []

    def call() -> str:
        calls.append(1)
        return f"é {len(calls)}"

    assert ledger.once(root, "ls", call) == "é 1" == ledger.once(root.fork(), "ls", call)
    root.append("4")
    assert ledger.once(root, "ls", call) == "é 2"
    first, second = ledger.path(root)
    assert (first.parent, second.parent) == (None, first.id)
    assert (first.length, second.value) == (length, "é 2")
    assert not first.committed and not first.saved
    assert keys(ledger.path(root.at(length))) == ["ls"] and not ledger.path(root.at(length - 1))
    assert ledger.find(root, "ls") == second and ledger.find(root, "pwd") is None


def test_hooks_tell_of_winners_and_losers(session: Session) -> None:
    told: list[tuple[str, str]] = []
    ledger = Ledger(
        session,
        on_commit=lambda effect: told.append(("commit", effect.key)),
        on_abort=lambda effect: told.append(("abort", effect.key)),
    )
    root = session.prefill(PROMPT)
    ledger.once(root, "trunk", lambda: "")
    winner, loser = root.fork(2)
    ledger.once(winner, "w", lambda: "")
    ledger.once(loser, "l", lambda: "")
    ledger.commit(winner)
    assert told == [("commit", "trunk"), ("commit", "w")]
    loser.prune()
    winner.prune()
    ledger.settle()
    assert told[2:] == [("abort", "l")]


def test_errors_come_out_and_leave_nothing(session: Session) -> None:
    def refuse(effect: Effect) -> None:
        raise ValueError(effect.key)

    ledger = Ledger(session, on_commit=refuse)
    root = session.prefill(PROMPT)
    with pytest.raises(ZeroDivisionError):
        ledger.once(root, "bad", lambda: str(1 // 0))
    assert ledger.path(root) == []
    with pytest.raises(TypeError, match="what it returned: got an int; expected a str"):
        ledger.once(root, "bad", lambda: 5)  # type: ignore[arg-type,return-value]
    effect = ledger.begin(root, "x")
    with pytest.raises(Error, match="has not ended"):
        ledger.commit(root)
    ledger.end(effect, "")
    with pytest.raises(ValueError, match="x"):
        ledger.commit(root)
    with pytest.raises(Error, match="has ended"):
        ledger.forget(effect)
    with pytest.raises(TypeError, match="session: got a str; expected a Session"):
        Ledger("session")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="call: got a str; expected a callable"):
        ledger.once(root, "y", "no")  # type: ignore[arg-type]


def test_a_restored_branch_repeats_no_call(
    engine: Engine, session: Session, tmp_path: pathlib.Path
) -> None:
    ledger = Ledger(session)
    branch = session.prefill(PROMPT)
    ledger.once(branch, "pay", lambda: "paid")
    ledger.begin(branch, "slow")
    session.save(tmp_path / "file", [branch], attachment=ledger.save())
    restored = engine.restore(tmp_path / "file")
    with restored.session:
        again = Ledger(restored.session, saved=restored.attachment, branches=restored.branches)
        back = restored.branches[0]
        assert again.once(back, "pay", lambda: "twice") == "paid"
        assert again.path(back)[0].saved
        with pytest.raises(Error, match='"slow" was begun'):
            again.once(back, "slow", lambda: "twice")
        with pytest.raises(Error, match="another session"):
            ledger.path(back)
    with pytest.raises(Error, match="ledger: a saved text is no JSON"):
        Ledger(session, saved="{", branches=[branch])


def test_coroutines_are_called_once(session: Session) -> None:
    ledger = Ledger(session)
    root = session.prefill(PROMPT)
    calls = 0

    async def tool() -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        return f"call {calls}"

    async def fail() -> str:
        raise ValueError

    async def run() -> None:
        assert await ledger.once_async(root, "tool", tool) == "call 1"
        assert await ledger.once_async(root, "tool", tool) == "call 1"
        with pytest.raises(ValueError):
            await ledger.once_async(root, "fails", fail)
        assert ledger.find(root, "fails") is None

    asyncio.run(run())
    assert calls == 1


def test_it_outlives_its_session(engine: Engine) -> None:
    told: list[str] = []
    with engine.session() as session:
        ledger = Ledger(session, on_abort=lambda effect: told.append(effect.key))
        ledger.once(session.prefill(PROMPT), "a", lambda: "")
    ledger.settle()
    assert told == ["a"]
