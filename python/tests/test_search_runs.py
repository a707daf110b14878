"""Searches as they are run: evaluators, prompts, strategies of one's own, traces."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import math
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import threading
from typing import Any

import pytest
from conftest import ROOT
from search_help import NUMBERS, PROPOSE, SOLVE, steps

from dendrite import (
    BestOfN,
    Branch,
    Cancel,
    Candidate,
    Engine,
    Error,
    Finish,
    Judgement,
    SearchResult,
    Session,
    Steps,
    TreeOfThoughts,
    _game24,
    notebook,
)

# --- evaluators


def value_of(candidate: Candidate) -> float:
    """The best state is the smallest; at top level so that another process can import it."""
    state = _game24.state_after(NUMBERS, candidate.history)
    return -float(sum(state)) if state else math.nan


def traced(session: Session, strategy: Any, path: pathlib.Path) -> bytes:
    session.run_tree(strategy, PROPOSE, trace=path)
    return path.read_bytes()


def test_threads_and_executors_change_nothing(engine: Engine, tmp_path: pathlib.Path) -> None:
    def run(judgement: Judgement, **fields: Any) -> bytes:
        with engine.session(seed=7) as session:
            strategy = TreeOfThoughts(steps=steps(judgement=judgement, **fields))
            return traced(session, strategy, tmp_path / "trace")

    wanted = run(Judgement(evaluate=value_of))
    assert wanted.count(b'"judged"') > 10
    assert run(Judgement(evaluate=value_of, evaluator_threads=3)) == wanted
    threads = Judgement(evaluate=value_of, evaluator_threads=3)
    assert run(threads, propose_groups=2, speculate=3) == wanted
    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        assert run(Judgement(evaluate=value_of, executor=executor)) == wanted


def test_an_executor_of_processes(session: Session) -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        judgement = Judgement(evaluate=value_of, executor=executor)
        result = session.run_tree(
            TreeOfThoughts(depth=1, steps=steps(judgement=judgement)), PROPOSE
        )
    assert all(thought.value < 0 for thought in result.tree)


def test_evaluators_run_beside_each_other(session: Session) -> None:
    together = threading.Barrier(3, timeout=20)

    def evaluate(candidate: Candidate) -> float:
        together.wait()
        return 0.0

    def propose(session: Session, nodes: list[Branch]) -> list[list[Branch]]:
        return [node.fork(3) for node in nodes]

    judgement = Judgement(evaluate=evaluate, evaluator_threads=3)
    strategy = TreeOfThoughts(depth=1, steps=Steps(propose=propose, judgement=judgement))
    assert len(session.run_tree(strategy, PROPOSE).tree) == 3


def test_candidates_are_picklable(session: Session) -> None:
    seen: list[Candidate] = []

    def evaluate(candidate: Candidate) -> float:
        seen.append(candidate)
        return 0.0

    judgement = Judgement(evaluate=evaluate)
    result = session.run_tree(TreeOfThoughts(depth=2, steps=steps(judgement=judgement)), PROPOSE)
    assert pickle.loads(pickle.dumps(seen)) == seen
    assert [c.node for c in seen] == [t.node for t in result.tree]
    assert seen[-1].history.endswith(seen[-1].text + "\n") and seen[-1].depth == 2
    assert pickle.loads(pickle.dumps(result.tree)) == result.tree


async def slow_value_of(candidate: Candidate) -> float:
    await asyncio.sleep(0.001)
    return value_of(candidate)


def test_async_evaluators_run_in_the_loop(engine: Engine, tmp_path: pathlib.Path) -> None:
    with engine.session(seed=7) as session:
        strategy = TreeOfThoughts(steps=steps(judgement=Judgement(evaluate=value_of)))
        wanted = traced(session, strategy, tmp_path / "sync")

    async def run() -> bytes:
        with engine.session(seed=7) as session:
            strategy = TreeOfThoughts(steps=steps(judgement=Judgement(evaluate=slow_value_of)))
            await session.aio.run_tree(strategy, PROPOSE, trace=tmp_path / "async")
        return (tmp_path / "async").read_bytes()

    assert asyncio.run(run()) == wanted


def test_async_evaluators_need_a_loop(session: Session) -> None:
    strategy = TreeOfThoughts(steps=Steps(judgement=Judgement(evaluate=slow_value_of)))
    with pytest.raises(TypeError, match=r"session\.aio\.run_tree"):
        session.run_tree(strategy, PROPOSE)
    with pytest.raises(TypeError, match="executor: got one and no evaluate"):
        executor = concurrent.futures.ThreadPoolExecutor(1)
        session.run_tree(BestOfN(judgement=Judgement(executor=executor)), PROPOSE)


def test_a_cancelled_task_ends_its_evaluations(small: Engine) -> None:
    began = threading.Event()

    async def forever(candidate: Candidate) -> float:
        began.set()
        await asyncio.sleep(1000)
        return 0.0

    async def run() -> None:
        with small.session(seed=7) as session:
            strategy = TreeOfThoughts(steps=steps(judgement=Judgement(evaluate=forever)))
            task = asyncio.ensure_future(session.aio.run_tree(strategy, PROPOSE))
            while not began.is_set():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 20)
            assert session.stats().branches_live == 0

    asyncio.run(run())


def test_a_cancelled_task_ends_a_strategy_of_ones_own(small: Engine) -> None:
    class Endless:
        def __init__(self) -> None:
            self.cancel = Cancel()
            self.ended = False

        def run(self, session: Session, root: Branch) -> SearchResult:
            while session.decode(root.fork(), max_tokens=8, cancel=self.cancel).finish is not (
                Finish.CANCELLED
            ):
                pass
            self.ended = True
            return SearchResult(finish=Finish.CANCELLED)

    async def run() -> None:
        strategy = Endless()
        with small.session(seed=7) as session:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(session.aio.run_tree(strategy, PROPOSE), 0.1)
            assert strategy.ended

    asyncio.run(run())


# --- prompts, strategies of one's own, traces


def test_a_prompt_may_be_text_ids_or_a_branch(engine: Engine) -> None:
    texts = []
    for kind in ("text", "ids", "branch"):
        with engine.session(seed=7) as session:
            root = session.prefill(PROPOSE)
            prompts = {"text": PROPOSE, "ids": engine.encode(PROPOSE), "branch": root}
            if kind != "branch":
                root.prune()
            result = session.run_tree(TreeOfThoughts(depth=1, steps=steps()), prompts[kind])
            texts.append([(thought.text, thought.value) for thought in result.tree])
            assert not root
    assert texts[0] == texts[1] == texts[2]


def test_searches_in_threads_are_those_alone(engine: Engine, tmp_path: pathlib.Path) -> None:
    def run(seed: int, name: str) -> bytes:
        with engine.session(seed=seed) as session:
            judgement = Judgement(evaluate=value_of, evaluator_threads=2)
            strategy = TreeOfThoughts(depth=2, steps=Steps(judgement=judgement))
            return traced(session, strategy, tmp_path / f"{name} {seed}")

    alone = [run(seed, "alone") for seed in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert list(threads.map(run, range(4), ["together"] * 4)) == alone


class Greedy:
    """A strategy of one's own, which uses another one inside."""

    def __init__(self) -> None:
        self.roots: list[Branch] = []

    def run(self, session: Session, root: Branch) -> SearchResult:
        self.roots.append(root)
        inner = TreeOfThoughts(depth=1, width=1, steps=steps()).run(session, root.fork())
        return SearchResult(solved=False, branch=inner.branch, path=inner.path, tree=inner.tree)


def test_a_strategy_of_ones_own(session: Session, tmp_path: pathlib.Path) -> None:
    greedy = Greedy()
    root = session.prefill(PROPOSE)
    result = session.run_tree(greedy, root, trace=tmp_path / "trace")
    assert not root and greedy.roots[0]
    assert result.branch and len(result.path) == 1
    header, end = map(json.loads, (tmp_path / "trace").read_text().splitlines())
    assert header["strategy"] == "Greedy" and header["prompt"].endswith(PROPOSE)
    assert header["seed"] == 7 and header["model"] == "dendrite-24"
    assert end["result"]["nodes"] == len(result.tree)
    with pytest.raises(TypeError, match="tells of no thoughts"):
        session.run_tree(greedy, PROPOSE, progress=True)

    class Wrong:
        def run(self, session: Session, root: Branch) -> Any:
            return root

    with pytest.raises(TypeError, match=r"Wrong\.run: got a Branch; expected"):
        session.run_tree(Wrong(), PROPOSE)


class Beam:
    """One that makes no records."""

    def run(self, session: Session, root: Branch) -> SearchResult:
        assert isinstance(session, Session)
        branches = root.fork(3)
        for _ in range(2):
            session.decode(branches, max_tokens=32, temperature=1.0, stop=["\n"])
            best = max(branches, key=lambda branch: branch.logprob / len(branch))
            branches = [branch.fork() for branch in (best, best, branches[0])]
        (last,) = session.expand([best], top=1)
        return SearchResult(branch=last[0])


def test_a_strategy_of_ones_own_draws_itself(session: Session, tmp_path: pathlib.Path) -> None:
    root = session.prefill(SOLVE)
    result = session.run_tree(Beam(), root, trace=tmp_path / "trace.jsonl")
    assert [thought.depth for thought in result.tree] == [1, 1, 1, 2, 2, 2, 3]
    assert [thought.node for thought in result.tree] == [1, 2, 3, 4, 5, 6, 7]
    assert all(thought.parent in (1, 2, 3) for thought in result.tree[3:6])
    assert result.branch is not None
    *_, last = result.path
    assert last.node == 7 and last.parent == result.path[-2].node and len(result.path) == 3
    text = "".join(step.text for step in result.path)
    assert session.engine.decode(result.branch.tokens).endswith(text)
    assert [thought for thought in result.tree if thought.kept] == result.path
    total = sum(step.logprob for step in result.path)
    assert total == pytest.approx(result.branch.logprob)
    assert "the prompt" not in result.to_svg() and result.to_svg().count("<circle") == 8
    page, thoughts, end = notebook.read_page(tmp_path / "trace.jsonl")
    assert (thoughts, end) == (7, "not solved") and "<!doctype html>" in page
    assert notebook.page(tmp_path / "trace.jsonl") == page
    with pytest.raises(Error, match="expected a trace, which is JSON lines"):
        notebook.page(tmp_path / "none")


def test_equal_texts_of_different_branches_stay_apart(session: Session) -> None:
    class Twins:
        def run(self, session: Session, root: Branch) -> SearchResult:
            twins = root.fork(2)
            session.decode(twins, max_tokens=3, temperature=0.0)  # the same
            for twin in twins:
                for _ in session.stream(twin, max_tokens=2, temperature=0.0):
                    pass
                session.decode_step(twin.fork())
            return SearchResult()

    tree = session.run_tree(Twins(), PROPOSE).tree
    assert [thought.parent for thought in tree] == [0, 0, 1, 3, 2, 5]


def test_a_branch_of_another_session_is_refused(engine: Engine, session: Session) -> None:
    with engine.session() as other:
        root = other.prefill(PROPOSE)
        with pytest.raises(Error, match="belongs to another session"):
            session.run_tree(TreeOfThoughts(), root)
        assert root


def test_a_trace_that_cannot_be_written(session: Session, tmp_path: pathlib.Path) -> None:
    for strategy in (TreeOfThoughts(), Greedy()):
        with pytest.raises(Error, match="cannot be written"):
            session.run_tree(strategy, PROPOSE, trace=tmp_path / "none" / "trace")


def test_the_trace_is_that_of_cpp(engine: Engine, tmp_path: pathlib.Path) -> None:
    """Y2: the same search in C++ writes the same bytes, but for what the program adds."""
    program = pathlib.Path(os.environ.get("DENDRITE_EXAMPLES_DIR", "/none")) / "dendrite"
    if not program.exists():
        pytest.skip("DENDRITE_EXAMPLES_DIR has no program dendrite")
    subprocess.run(
        [program, "solve", *map(str, NUMBERS), "--seed", "3", "--trace", tmp_path / "cpp"]
        + ["--model", ROOT / "models/dendrite-24"],
        check=True,
        capture_output=True,
    )
    header, *lines = (tmp_path / "cpp").read_text().splitlines()
    with engine.session(seed=3) as session:
        strategy = _game24.tree_of_thoughts(NUMBERS, 24, 5)
        ours = traced(session, strategy, tmp_path / "python").decode().splitlines()
    assert ours[1:] == lines
    wanted = json.loads(header)
    wanted["params"] = {k: v for k, v in wanted["params"].items() if not k.startswith("solve.")}
    assert json.loads(ours[0]) == wanted
