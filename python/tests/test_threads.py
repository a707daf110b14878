"""Many threads on one engine, forks of the process, the end of the interpreter."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time

from conftest import PROMPT, ROOT

from dendrite import Branch, Engine, Session

SECONDS = float(os.environ.get("DENDRITE_TEST_SECONDS", "5"))


def work(session: Session, root: Branch, seed: int, until: float) -> None:
    dice = random.Random(seed)
    branches = [root.fork()]
    while time.monotonic() < until:
        branch = dice.choice(branches)
        match dice.randrange(8):
            case 0 | 1:
                branches.append(branch.fork())
            case 2:
                session.decode(branch, max_tokens=dice.randrange(6), temperature=1.0)
            case 3:
                session.decode(branches[:4], max_tokens=2, on_step=lambda events: True)
            case 4:
                branch.score(["4+9=13", "1"])
            case 5:
                repr(branch)
                branch.append("4")
                len(branch.tokens)
            case 6:
                session.expand([branch], top=2)
            case 7 if len(branches) > 3:
                branches.remove(branch)
                branch.prune()
        if len(branches) > 12 or len(branches[0]) > 200:
            session.prune(branches)
            branches = [root.fork()]
    session.prune(branches)


def test_threads_of_random_operations(small: Engine) -> None:
    errors: list[BaseException] = []
    with small.session() as session, small.events() as events:
        root = session.prefill(PROMPT)
        pages = small.stats().pages_used
        until = time.monotonic() + SECONDS

        def run(seed: int) -> None:
            try:
                work(session, root, seed, until)
            except BaseException as error:  # noqa: BLE001 - told by the test's thread
                errors.append(error)

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        seen = 0
        while any(thread.is_alive() for thread in threads):
            seen += len(events.take())
            time.sleep(0.01)
        assert not errors
        assert seen > 100
        assert small.stats().pages_used == pages


SCRIPT = """
import asyncio, threading, dendrite
engine = dendrite.Engine({model!r}, threads=1, kv_tokens=4096)
session = engine.session()
root = session.prefill("S 24: 4 9 10 13\\n")
kept = [root.fork(), root.node(), session.prefill("S 24: 1 2 3 4\\n").distribution()]
def forever():
    session.decode(root.fork(), max_tokens=10**6, ignore_eos=True, on_step=lambda events: True)
threading.Thread(target=forever, daemon=True).start()
async def main():
    task = asyncio.ensure_future(session.aio.decode(root, max_tokens=10**6, ignore_eos=True))
    await asyncio.sleep(0.05)
    return task
task = asyncio.new_event_loop().run_until_complete(main())
print("end")
"""


def test_the_interpreter_ends_with_calls_under_way() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "faulthandler",
            "-c",
            SCRIPT.format(model=str(ROOT / "models/dendrite-24")),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "end\n"
    assert not done.stderr


LEAKS = """
import asyncio, dendrite, typing
from dendrite import _core
_core.report_leaks()
with dendrite.Engine({model!r}, threads=1, kv_tokens=4096) as engine, engine.events() as events:
    with engine.session() as session:
        root = session.prefill("S 24: 4 9 10 13\\n")
        node = root.node()
        session.decode(root.fork(4), max_tokens=4, on_token=lambda event: root.fork())
        async def main():
            out = await session.aio.decode(root.fork(4), max_tokens=4)
            async for step in session.aio.stream(root.fork(), max_tokens=3):
                pass
            task = asyncio.ensure_future(session.aio.decode(root.fork(), max_tokens=10**6))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        asyncio.run(main())
        try:
            session.decode(root, max_tokens=4, on_token=lambda event: 1 / 0)
        except ZeroDivisionError:
            pass
typing.clear_overloads()  # which keep their modules until after the report, since Python 3.13
"""


def test_nothing_leaks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAKS.format(model=str(ROOT / "models/dendrite-24"))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
