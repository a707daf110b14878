"""asyncio: tasks share steps, draw what they would alone, and leave nothing when they end early."""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import threading

import pytest
from conftest import PROMPT

from dendrite import Branch, Engine, Finish, Session, TokenEvent

ROUNDS = int(os.environ.get("DENDRITE_TEST_ROUNDS", "10"))  # nightly: 100


def test_merged_is_sequential(engine: Engine) -> None:
    with engine.session(seed=3) as session:
        root = session.prefill(PROMPT)
        wanted = [
            session.decode(branch, max_tokens=12, temperature=1.0).ids for branch in root.fork(256)
        ]

    async def run() -> list[list[int]]:
        with engine.session(seed=3) as session:
            root = await session.aio.prefill(PROMPT)
            steps = engine.stats().steps
            out = await asyncio.gather(
                *(session.aio.decode(b, max_tokens=12, temperature=1.0) for b in root.fork(256))
            )
            assert engine.stats().steps - steps < 60
            return [generation.ids for generation in out]

    assert asyncio.run(run()) == wanted


def test_all_calls(session: Session) -> None:
    async def run() -> None:
        aio = session.aio
        root = await aio.prefill(PROMPT)
        scores = await aio.score([root], ["4", "9"])
        assert scores[0][0].logprob == session.score([root], ["4", "9"])[0][0].logprob
        [[score]] = await aio.score([root], ["4"], top_logprobs=2)
        assert len(score.top[0]) == 2
        children = await aio.expand([root], top=2)
        assert len(children[0]) == 2
        out = await aio.decode(root.fork(2), max_tokens=3, ignore_eos=True)
        assert [len(generation.ids) for generation in out] == [3, 3]
        steps = [step async for step in aio.stream(root.fork(2), max_tokens=3, ignore_eos=True)]
        assert sum(len(step) for step in steps) == 6
        assert [event.token for step in steps for event in step if event.index == 0] == out[0].ids
        done = [index async for index, generation in aio.as_completed(root.fork(4), max_tokens=4)]
        assert sorted(done) == [0, 1, 2, 3]

    asyncio.run(run())


def test_errors_come_out(session: Session) -> None:
    async def run() -> None:
        branch = await session.aio.prefill(PROMPT)

        def fail(event: TokenEvent) -> None:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await session.aio.decode(branch, max_tokens=4, on_token=fail)
        assert (await session.aio.decode(branch, max_tokens=1, ignore_eos=True)).ids

    asyncio.run(run())


def test_callbacks_have_the_tasks_context(session: Session) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")
    seen: set[tuple[str, bool]] = set()

    def look(event: TokenEvent) -> None:
        seen.add((variable.get(), threading.current_thread() is threading.main_thread()))

    async def run() -> None:
        branch = await session.aio.prefill(PROMPT)
        variable.set("mine")
        await session.aio.decode(branch, max_tokens=2, on_token=look)

    asyncio.run(run())
    assert seen == {("mine", False)}


def test_cancelled_tasks_leave_nothing(small: Engine) -> None:
    async def run() -> None:
        with small.session() as session:
            root = await session.aio.prefill(PROMPT)
            pages = small.stats().pages_used
            for _ in range(5):
                branches = root.fork(4)
                task = asyncio.create_task(
                    session.aio.decode(branches, max_tokens=100000, ignore_eos=True)
                )
                await asyncio.sleep(0.02)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert all(branch.finish is Finish.CANCELLED for branch in branches)
                session.prune(branches)
                assert small.stats().pages_used == pages
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await session.aio.decode(root.fork(), max_tokens=100000, ignore_eos=True)
            stream = session.aio.stream(root.fork(), max_tokens=100000, ignore_eos=True)
            async for _ in stream:
                break
            await stream.aclose()
            assert (await session.aio.decode(root, max_tokens=2, ignore_eos=True)).ids

    asyncio.run(run())


def test_random_cancels(small: Engine) -> None:
    dice = random.Random(1)

    async def one(session: Session, root: Branch) -> None:
        with root.fork() as branch:
            task = asyncio.create_task(
                session.aio.decode(branch, max_tokens=dice.randrange(1, 40), temperature=1.0)
            )
            if dice.random() < 0.5:
                await asyncio.sleep(dice.random() * 0.01)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def run() -> None:
        with small.session() as session:
            root = await session.aio.prefill(PROMPT)
            pages = small.stats().pages_used
            for _ in range(ROUNDS):
                await asyncio.gather(*(one(session, root) for _ in range(20)))
            assert small.stats().pages_used == pages

    asyncio.run(run())


def test_a_closed_session_ends_its_tasks(small: Engine) -> None:
    async def run() -> None:
        session = small.session()
        root = await session.aio.prefill(PROMPT)
        task = asyncio.create_task(session.aio.decode(root, max_tokens=100000, ignore_eos=True))
        await asyncio.sleep(0.02)
        session.close()
        out = await task
        assert out.finish is Finish.CANCELLED

    asyncio.run(run())
