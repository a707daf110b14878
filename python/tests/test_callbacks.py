"""Callbacks: what they may do, and that raising leaves nothing half done."""

from __future__ import annotations

import pickle
import signal
import threading
import time

import pytest
from conftest import PROMPT

import dendrite
from dendrite import Branch, Cancel, Engine, Finish, Generation, Session, TokenEvent


def test_on_token_and_on_step_see_all(session: Session) -> None:
    branches = session.prefill(PROMPT).fork(3)
    tokens: list[TokenEvent] = []
    steps: list[list[TokenEvent]] = []
    out = session.decode(
        branches, max_tokens=5, temperature=1.0, on_token=tokens.append, on_step=steps.append
    )
    for index, generation in enumerate(out):
        assert [event.token for event in tokens if event.index == index] == generation.ids
        assert (
            "".join(e.text for step in steps for e in step if e.index == index) == generation.text
        )
    assert [event.token for step in steps for event in step] == [event.token for event in tokens]


def test_a_stream_is_a_list_a_step(session: Session) -> None:
    root = session.prefill(PROMPT)
    wanted = session.decode(root.fork(2), max_tokens=6, ignore_eos=True)
    steps = list(session.stream(root.fork(2), max_tokens=6, ignore_eos=True))
    assert [len(step) for step in steps] == [2] * 6
    assert [step[0].token for step in steps] == wanted[0].ids


def test_log_probs_come_with_their_tokens(session: Session) -> None:
    root = session.prefill(PROMPT)
    wanted = session.decode(root.fork(), max_tokens=4, top_logprobs=2)
    (told,) = zip(*session.stream(root.fork(), max_tokens=4, top_logprobs=2), strict=True)
    assert [event.chosen.logprob for event in told if event.chosen] == [
        chosen.logprob for chosen in wanted.logprobs
    ]
    assert repr(pickle.loads(pickle.dumps(told[0])).chosen) == repr(told[0].chosen)
    (quiet,) = zip(*session.stream(root.fork(), max_tokens=1), strict=True)
    assert quiet[0].chosen is None


def test_closing_a_stream_cancels(session: Session) -> None:
    branch = session.prefill(PROMPT)
    stream = session.stream(branch, max_tokens=1000, ignore_eos=True)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert branch.finish is Finish.CANCELLED
    assert len(branch) < 200
    session.decode(branch, max_tokens=2)


@pytest.mark.parametrize("name", ["on_token", "on_step", "enough"])
def test_what_a_callback_raises_comes_out(session: Session, name: str) -> None:
    branches = session.prefill(PROMPT).fork(3)

    def fail(*arguments: object) -> bool:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        session.decode(branches, max_tokens=4, **{name: fail})  # type: ignore[arg-type]
    lengths = {len(branch) for branch in branches}
    assert len(lengths) == 1  # the step is whole
    again = session.decode(branches, max_tokens=2, ignore_eos=True)
    assert [len(out.ids) for out in again] == [2, 2, 2]


def test_false_from_on_step_cancels(session: Session) -> None:
    branch = session.prefill(PROMPT)
    out = session.decode(branch, max_tokens=50, ignore_eos=True, on_step=lambda events: False)
    assert out.finish is Finish.CANCELLED
    assert len(out.ids) == 1


def test_enough_prunes_the_losers(session: Session) -> None:
    branches = session.prefill(PROMPT).fork(8)
    shown: list[int] = []

    def first(index: int, generation: Generation) -> bool:
        shown.append(index)
        return True

    out = session.decode(branches, max_tokens=40, temperature=1.0, stop=["\n"], enough=first)
    assert len(shown) == 1
    assert [bool(branch) for branch in branches] == [i == shown[0] for i in range(8)]
    assert sum(generation.finish is Finish.ABANDONED for generation in out) == 7


def test_in_a_call_a_branch_may_be_forked_and_read(session: Session) -> None:
    branch = session.prefill(PROMPT)
    kept: list[Branch] = []

    def look(event: TokenEvent) -> None:
        assert branch.last_token == event.token
        kept.append(branch.fork())
        for change in (branch.prune, lambda: branch.append("x"), lambda: session.decode(branch)):
            with pytest.raises(dendrite.BranchBusy):
                change()

    out = session.decode(branch, max_tokens=3, ignore_eos=True, on_token=look)
    assert [fork.last_token for fork in kept] == out.ids


def test_cancel_from_another_thread(session: Session) -> None:
    cancel = Cancel()
    branch = session.prefill(PROMPT)
    threading.Timer(0.05, cancel.cancel).start()
    out = session.decode(branch, max_tokens=60000, ignore_eos=True, cancel=cancel)
    assert out.finish is Finish.CANCELLED
    assert cancel.cancelled


def interrupt_soon(seconds: float) -> None:
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGINT)).start()


def test_ctrl_c_in_decode_and_stream(small: Engine) -> None:
    with small.session() as session:
        branch = session.prefill(PROMPT)
        pages = small.stats().pages_used
        fork = branch.fork()
        interrupt_soon(0.1)
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            session.decode(fork, max_tokens=10000, ignore_eos=True)
        assert time.monotonic() - begin < 5
        interrupt_soon(0.1)
        with pytest.raises(KeyboardInterrupt):
            for _ in session.stream(fork, max_tokens=10000, ignore_eos=True):
                pass
        fork.prune()
        assert small.stats().pages_used == pages
        assert len(session.decode(branch, max_tokens=2, ignore_eos=True).ids) == 2


def test_ctrl_c_in_prefill(small: Engine) -> None:
    with small.session() as session:
        interrupt_soon(0.15)
        with pytest.raises(KeyboardInterrupt):  # on a CPU in the first, on a GPU in a later one
            for first in range(3, 1000):
                session.prefill([first] + [5] * 12000).prune()
        assert small.stats().pages_used == 0


def test_closing_a_session_ends_calls_of_other_threads(small: Engine) -> None:
    session = small.session()
    branch = session.prefill(PROMPT)
    finishes: list[Finish] = []

    def work() -> None:
        finishes.append(session.decode(branch, max_tokens=100000, ignore_eos=True).finish)

    thread = threading.Thread(target=work)
    thread.start()
    while session.stats().tokens_generated == 0:
        time.sleep(0.001)
    session.close()
    thread.join()
    assert finishes == [Finish.CANCELLED]
    assert small.stats().pages_used == 0
