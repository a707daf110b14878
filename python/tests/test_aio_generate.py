"""asyncio's sessions: all that Session has, many prompts, streams that end where they are left."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import pathlib
import threading
from collections.abc import Generator
from typing import Any

import pytest
from conftest import PROMPT, load

from dendrite import (
    AsyncSession,
    BranchEmpty,
    Cancel,
    DecodeParams,
    Engine,
    EngineClosed,
    Error,
    Finish,
    Generation,
    Session,
    TokenEvent,
    _core,
)
from dendrite._params import native
from dendrite._recording import RecordedSession

PROMPTS = ["S 24: 4 6\n", PROMPT, "S 24: 3 8\n", PROMPT]
HOT = DecodeParams(max_tokens=20, temperature=1.5)


def names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_it_has_all_that_session_has() -> None:
    assert names(Session) <= names(AsyncSession)
    assert names(AsyncSession) - names(Session) == {"session", "as_completed"}
    for name in sorted(names(Session)):
        sync, own = getattr(Session, name), getattr(AsyncSession, name)
        assert inspect.getdoc(own), name
        if callable(sync):
            wanted = set(inspect.signature(sync).parameters) - {"ahead"}
            assert wanted <= set(inspect.signature(own).parameters), name


def test_all_of_it_works(engine: Engine, tmp_path: pathlib.Path) -> None:
    async def run() -> None:
        async with engine.session(seed=4) as session:
            aio = session.aio
            assert (aio.engine, aio.seed, aio.closed, aio.aio) == (engine, 4, False, aio)
            assert aio.shortage is None
            branch = await aio.prefill(PROMPT)
            rows = await aio.distributions([branch])
            assert (rows == session.distributions([branch])).all()
            token = await aio.decode_step(branch, temperature=0)
            assert token == int(rows[0].argmax())
            await aio.save(tmp_path / "saved", [branch])
            assert len(await aio.snapshot([branch])) > 100 and (tmp_path / "saved").exists()
            assert aio.stats().tokens_generated == 1
            aio.prune([branch])
            assert not branch
        assert session.closed and aio.closed
        async with engine.session().aio as other:
            await other.prefill(PROMPT)
        assert other.closed

    asyncio.run(run())


def test_an_engine_closes_behind_its_tasks() -> None:
    async def run() -> None:
        async with load(kv_tokens=2048) as own, own.session() as session:
            long = session.aio.generate(PROMPT, max_tokens=900, ignore_eos=True)
            task = asyncio.ensure_future(long)
            await asyncio.sleep(0.05)
        assert own.closed and session.closed
        [out] = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(out, EngineClosed):  # it was between two calls
            assert not isinstance(out, BaseException) and out.finish is Finish.CANCELLED

    asyncio.run(run())


def test_generate_is_the_same(engine: Engine) -> None:
    with engine.session(seed=3) as session:
        wanted = [out.ids for out in session.generate(PROMPTS, HOT)]
        samples = [[out.ids for out in each] for each in session.generate(PROMPTS, HOT, n=2)]

    async def run() -> None:
        for at_once in (None, 1):
            async with engine.session(seed=3) as session:
                out = await session.aio.generate(PROMPTS, HOT, at_once=at_once)
                assert [one.ids for one in out] == wanted
                many = await session.aio.generate(PROMPTS, HOT, n=2)
                assert [[one.ids for one in each] for each in many] == samples
        async with engine.session(seed=3) as session:  # tasks of one session, in any order
            apart = await asyncio.gather(*(session.aio.generate(p, HOT) for p in PROMPTS))
            assert [one.ids for one in apart] == wanted
            with pytest.raises(Error, match="prompt 1 has no tokens"):
                await session.aio.generate([PROMPT, []])

    asyncio.run(run())


def test_generate_as_completed(engine: Engine) -> None:
    sizes = [40, 3, 20]
    each = [DecodeParams(max_tokens=size, ignore_eos=True) for size in sizes]

    async def run() -> None:
        async with engine.session() as session:
            came = session.aio.generate_as_completed(PROMPTS[:3], each)
            assert [(i, len(out.ids)) async for i, out in came] == [(1, 3), (2, 20), (0, 40)]

    asyncio.run(run())


def test_leaving_what_comes_frees_all(small: Engine) -> None:
    async def run() -> None:
        async with small.session() as session:
            each = [DecodeParams(max_tokens=size, ignore_eos=True) for size in (1, 900, 900, 900)]
            async for index, out in session.aio.generate_as_completed(PROMPTS, each):
                assert index == 0 and len(out.ids) == 1
                break
            for _ in range(1000):  # the loop closes what it had been given
                if session.stats().branches_live == 0:
                    break
                await asyncio.sleep(0.01)
            assert session.stats().branches_live == 0 == small.stats().pages_used
            assert session.stats().tokens_generated < 1000

    asyncio.run(run())


def test_a_call_may_be_dropped_while_another_thread_ends_it(small: Engine) -> None:
    """As a session is closed in one thread, and in another what was left of as_completed."""
    entered, go_on = threading.Event(), threading.Event()

    def wait(_: object) -> bool:
        entered.set()
        return go_on.wait(60)

    with small.session() as session:
        params = native(DecodeParams(max_tokens=900, ignore_eos=True), {})
        branch = session.prefill(PROMPT)
        call = _core.submit_decode(
            session._handle, [branch], params, None, wait, None, None, None, 0
        )
        with concurrent.futures.ThreadPoolExecutor() as pool:
            steps = pool.submit(call.next_steps)  # makes the step that is waited in
            assert entered.wait(60)
            ends = pool.submit(call.cancel_and_wait)
            call.drop()
            call.cancel_and_wait()  # nothing is left of it
            go_on.set()
            ends.result(60)
            steps.exception(60)
        assert session.stats().branches_live == 1
    assert small.stats().pages_used == 0


@pytest.mark.parametrize("how", ["task", "cancel"])
def test_ending_generate_frees_all(small: Engine, how: str) -> None:
    async def run() -> None:
        async with small.session() as session:
            cancel = Cancel()
            task = asyncio.ensure_future(
                session.aio.generate(
                    PROMPTS * 3, max_tokens=900, ignore_eos=True, at_once=4, cancel=cancel
                )
            )
            await asyncio.sleep(0.3)
            if how == "cancel":
                cancel.cancel()
                assert len(await task) == 12
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert small.stats().pages_used == 0 and session.stats().branches_live == 0
            [again] = await session.aio.generate([PROMPTS[0]], temperature=0)
            assert again.text == "6*4=24 | 24\nok\n"

    asyncio.run(run())


def test_leaving_a_stream_ends_it_with_the_step(session: Session) -> None:
    async def run() -> None:
        branch = await session.aio.prefill(PROMPT)
        seen = 0
        async for step in session.aio.stream(branch, max_tokens=900, ignore_eos=True):
            seen += len(step)
            if seen >= 3:
                break
        length = len(branch.append("x"))  # it is free
        await asyncio.sleep(0.05)
        assert len(branch) == length < branch.prompt_length + 300
        stream = session.aio.stream(branch, max_tokens=900, ignore_eos=True)
        async with stream:
            async for _ in stream:
                break
        branch.append("x")
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        unused: Any = session.aio.stream(branch)
        await unused.aclose()
        branch.prune()
        with pytest.raises(BranchEmpty):
            await anext(session.aio.stream(branch))

    asyncio.run(run())


def test_leaving_a_stream_of_the_blocking_kind(session: Session) -> None:
    branch = session.prefill(PROMPT)
    for _ in session.stream(branch, max_tokens=900, ignore_eos=True):
        break
    assert len(branch.append("x")) < branch.prompt_length + 300


def test_a_stream_gives_what_was_generated(session: Session) -> None:
    params = DecodeParams(max_tokens=5, temperature=0, ignore_eos=True, logprobs=True)
    wanted = session.decode(session.prefill(PROMPT).fork(2), params)
    out: list[Generation] = []

    def steps(of: Session) -> Generator[list[TokenEvent], None, None]:
        out.extend((yield from of.stream(of.prefill(PROMPT).fork(2), params)))

    for of in (session, RecordedSession(session, session.prefill(PROMPT))):
        out.clear()
        assert len(list(steps(of))) == 5
        assert [one.asdict() for one in out] == [one.asdict() for one in wanted]

    async def run() -> None:
        async with session.aio.stream((await session.aio.prefill(PROMPT)).fork(2), params) as own:
            assert own.generations == []
            assert len([step async for step in own]) == 5
            assert [one.asdict() for one in own.generations] == [one.asdict() for one in wanted]

    asyncio.run(run())
