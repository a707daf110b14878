"""Processes that are forks of one that has, or had, an engine."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback

import pytest
from conftest import PROMPT, load

from dendrite import Engine, EngineClosed, Session

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def drawn(engine: Engine) -> list[int]:
    with engine.session(seed=7) as session:
        branches = session.prefill(PROMPT).fork(4)
        return session.decode(branches, max_tokens=24, temperature=1.0)[3].ids


def in_child(check: object) -> None:
    """Runs it in a fork of this process; what it raises fails the test here."""
    assert callable(check)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, how = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(how) == 0


def test_a_child_loads_an_engine_of_its_own(engine: Engine, session: Session) -> None:
    expected = drawn(engine)
    branch = session.prefill(PROMPT)
    node = branch.node()
    session.engine.start()  # and has threads that are not in the child

    def check() -> None:
        assert engine.closed and session.closed and not branch and not node
        for use in (
            lambda: engine.session(),
            lambda: branch.fork(),
            lambda: session.prefill(PROMPT),
        ):
            with pytest.raises(EngineClosed, match="load an engine of its own in this process"):
                use()
        with load(kv_tokens=16384) as own:
            assert drawn(own) == expected
            with own.session(seed=7) as mine:  # and a grandchild its own
                held = mine.prefill(PROMPT)

                def grandchild() -> None:
                    assert not held and own.closed
                    with load(kv_tokens=16384) as third:
                        assert drawn(third) == expected

                in_child(grandchild)
                assert held and len(held.fork()) == len(held)
        engine.close()  # changes nothing
        del branch_of[0]

    branch_of = [branch]
    in_child(check)
    assert branch and drawn(engine) == expected  # the parent's goes on


PROGRAM = """
import multiprocessing
import sys

import dendrite

def work(seed):
    with dendrite.Engine(sys.argv[1], kv_tokens=16384, threads=1) as engine:
        with engine.session(seed=seed) as session:
            return session.decode(session.prefill("S 24: 4 9 10 13\\\\n"), max_tokens=4).ids

async def twin(engine):
    with engine.session(seed=1) as session:
        branch = await session.aio.prefill("S 24: 4 9 10 13\\\\n")
        return (await session.aio.decode(branch, max_tokens=4)).ids

if __name__ == "__main__":
    import asyncio
    engine = dendrite.Engine(sys.argv[1], kv_tokens=16384, threads=1)
    expected = asyncio.run(twin(engine))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(work, [1, 2]) == [expected] * 2
    print("same")
"""


def test_multiprocessing_forks(tmp_path: object) -> None:
    from conftest import ROOT

    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            PROGRAM,
            ROOT / "models/dendrite-24",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "same\n", done.stderr
