"""Strategies with Python callables."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from search_help import PROPOSE, SOLVE, is_legal, is_solution, steps

import dendrite
from dendrite import (
    BeamSearch,
    BestFirst,
    BestOfN,
    Branch,
    BranchBusy,
    BranchEmpty,
    Budget,
    Critique,
    DecodeParams,
    DepthFirst,
    Engine,
    Error,
    Finish,
    ForkJoin,
    Judgement,
    Mcts,
    Proposals,
    Regex,
    Repair,
    SearchEvent,
    SelfConsistency,
    SelfRefinement,
    Session,
    Steps,
    TreeOfThoughts,
    search,
)

STEPWISE = [TreeOfThoughts, DepthFirst, BestFirst, Mcts]


@pytest.mark.parametrize("kind", STEPWISE)
def test_strategies_of_steps_solve(session: Session, kind: Any) -> None:
    events: list[SearchEvent] = []
    strategy = kind(steps=steps(), solved=is_solution, on_event=events.append)
    if isinstance(strategy, Mcts):  # (the judge is sharp: values are near 0 or 1)
        strategy.rule, strategy.exploration, strategy.iterations = search.Rule.PUCT, 0.5, 400
    result = session.run_tree(strategy, PROPOSE)
    assert result.solved and result.finish is Finish.STOP
    assert result.branch is not None and is_solution(result.branch, "")
    assert "".join(step.text + "\n" for step in result.path) == result.branch.text
    assert [step.depth for step in result.path] == [1, 2, 3]
    assert [thought.node for thought in result.tree] == list(range(1, len(result.tree) + 1))
    assert sum(event.kind == "proposed" for event in events) == len(result.tree)
    assert events[-1].kind == "solved" and events[-1].thought.node == result.path[-1].node
    assert result.rows()[0]["text"] == result.tree[0].text


def test_the_default_proposer_and_judge(session: Session) -> None:
    result = session.run_tree(TreeOfThoughts(depth=1, width=2), PROPOSE)
    assert not result.solved and result.finish is Finish.STOP
    assert 1 <= len(result.tree) <= 8
    best = max(result.tree, key=lambda thought: thought.value)
    assert result.path[0].node == best.node
    assert math.isclose(best.value, best.logprob / best.tokens)


def test_beam_search(session: Session) -> None:
    newline = int(session.engine.encode("\n", add_special=False)[-1])
    result = session.run_tree(
        BeamSearch(width=4, max_tokens=32, stop_tokens=[newline], length_penalty=0), PROPOSE
    )
    assert result.branch is not None and result.branch.text.endswith("\n")
    assert len(result.others) == 3
    values = [result.path[-1].value, *(other.value for other in result.others)]
    assert values == sorted(values, reverse=True)
    assert all(other.branch for other in result.others)
    assert result.path[-1].value == pytest.approx(result.branch.logprob)


def test_a_result_is_a_value(engine: Engine) -> None:
    with engine.session(seed=7) as session:
        strategy = BeamSearch(width=4, max_tokens=60)
        result = session.run_tree(strategy, SOLVE)
        assert result.branch is not None
        text = result.branch.text
    assert result.text == text and not result.branch  # readable behind its session
    copy = pickle.loads(pickle.dumps(result))
    assert copy.branch is None and all(other.branch is None for other in copy.others)
    assert copy.asdict() == result.asdict() and repr(copy) == repr(result)
    assert [row["text"] for row in copy.rows()] == [row["text"] for row in result.rows()]
    assert "branch" not in copy.asdict() and json.dumps(copy.asdict()["tree"])


def test_best_of_n(session: Session) -> None:
    sampling = DecodeParams(max_tokens=64, temperature=1.0)
    judgement = Judgement(judge=lambda session, answers: [float(len(a)) for a in answers])
    result = session.run_tree(BestOfN(n=6, sampling=sampling, judgement=judgement), SOLVE)
    assert result.branch is not None
    assert len(result.branch) >= max(len(b.branch) for b in result.others if b.branch)
    first = BestOfN(n=32, sampling=sampling, first_success=True, solved=is_solution)
    result = session.run_tree(first, SOLVE)
    assert result.solved and result.branch is not None and is_solution(result.branch, "")


def test_self_consistency(session: Session) -> None:
    def answer(branch: Branch, text: str) -> str | None:
        first = text.split("\n")[0]
        return first.split("=")[0] if "=" in first else None

    strategy = SelfConsistency(
        n=12, sampling=DecodeParams(max_tokens=24, temperature=1.0, stop=["\n"]), answer=answer
    )
    result = session.run_tree(strategy, SOLVE)
    assert sum(vote.count for vote in result.votes) <= 12
    counts = [vote.count for vote in result.votes]
    assert counts == sorted(counts, reverse=True)
    assert result.branch is not None
    assert answer(result.branch, result.branch.text) == result.votes[0].answer
    assert 0.5 < search.majority_confidence(3, 1) < 1


def test_self_refinement(session: Session) -> None:
    rounds: list[int] = []

    def criticise(session: Session, drafts: list[Branch]) -> list[Critique]:
        rounds.append(len(drafts))
        return [
            Critique(value=len(rounds), good=len(rounds) == 3, keep=draft.prompt_length)
            for draft in drafts
        ]

    strategy = SelfRefinement(
        rounds=5,
        drafts=2,
        draft=DecodeParams(max_tokens=8),
        revision=DecodeParams(max_tokens=8, temperature=1.0),
        criticise=criticise,
    )
    result = session.run_tree(strategy, SOLVE)
    assert result.solved and rounds == [2, 2, 2]
    assert [step.value for step in result.path] == [1, 2, 3]
    with pytest.raises(Error, match="criticise is not set"):
        session.run_tree(SelfRefinement(), SOLVE)


def test_forks_and_joins_that_the_model_asks_for(session: Session, tmp_path: Path) -> None:
    plans: list[str] = []

    def begin(branch: Branch, text: str) -> list[str]:
        plans.append(text)
        return ["S 24: ", "P 24: "]

    strategy = ForkJoin(
        open="<f>",
        close="</c>",
        max_forks=1,
        trunk=DecodeParams(max_tokens=40, temperature=1.0, constraint=Regex("[1-3]{9,12}<f>")),
        child=DecodeParams(max_tokens=40, temperature=1.0, constraint=Regex("[4-9]{12,20}</c>")),
        begin=begin,
        before_each="|",
        repair=Repair(first=4),
    )
    result = session.run_tree(strategy, PROPOSE, trace=tmp_path / "trace.jsonl")
    assert [thought.parent for thought in result.tree] == [0, 1, 1, 2]
    assert [thought.joined for thought in result.tree] == [[], [], [], [2, 3]]
    assert plans == [result.tree[0].text]
    assert [join.exactness for join in result.joins] == ["composed"]
    assert result.joins[0].moved > 0
    assert result.branch is not None and result.branch.composition.moved == result.joins[0].moved
    assert '"joined":[2,3]' in (tmp_path / "trace.jsonl").read_text()
    strategy.mode = "exact"
    exact = session.run_tree(strategy, PROPOSE)
    assert exact.joins[0].exactness == "exact" and exact.joins[0].moved == 0
    assert exact.branch is not None
    text = session.engine.decode(exact.branch.tokens)
    first, second = (thought.text for thought in exact.tree[1:3])
    assert f"S 24: {first}</c>|P 24: {second}</c>" in text
    with pytest.raises(Error, match="open and open_tokens are empty"):
        session.run_tree(ForkJoin(), PROPOSE)
    with pytest.raises(TypeError, match="begin: got an int"):
        session.run_tree(dataclasses.replace(strategy, begin=lambda *_: [1]), PROPOSE)


def test_mcts_with_rollouts_and_a_prior(session: Session) -> None:
    priors: list[float] = []

    def prior(thought: search.Thought) -> float:
        assert thought.branch
        priors.append(thought.logprob)
        return 1.0

    strategy = Mcts(
        rule=search.Rule.PUCT,
        iterations=12,
        rollouts=2,
        rollout=DecodeParams(max_tokens=40, temperature=1.0),
        steps=Steps(
            accept=is_legal,
            prior=prior,
            judgement=Judgement(evaluate=lambda c: len(c.history) / 100, evaluator_threads=2),
        ),
    )
    result = session.run_tree(strategy, PROPOSE)
    assert len(priors) == len(result.tree)
    visited = [thought for thought in result.tree if thought.visits]
    assert visited and all(thought.value > 0 for thought in visited)


# --- what callables may do


def test_lent_branches_are_empty_afterwards_and_forks_stay(session: Session) -> None:
    lent: list[Branch] = []
    kept: list[Branch] = []

    def judge(session: Session, nodes: list[Branch]) -> list[float]:
        lent.extend(nodes)
        kept.extend(node.fork() for node in nodes)
        return [0.0] * len(nodes)

    def solved(branch: Branch, step: str) -> bool:
        lent.append(branch)
        return False

    strategy = TreeOfThoughts(depth=1, steps=steps(judgement=Judgement(judge=judge)), solved=solved)
    result = session.run_tree(strategy, PROPOSE)
    assert not any(lent) and all(kept)
    assert {branch.text for branch in kept} == {thought.text + "\n" for thought in result.tree}
    with pytest.raises(BranchEmpty):
        session.decode(lent[0])


def test_calls_of_the_session_work_in_callables(session: Session) -> None:
    def judge(session: Session, nodes: list[Branch]) -> list[float]:
        outs = session.decode([node.fork() for node in nodes], max_tokens=3)
        side = session.prefill("S 24: 1 1 4 6\n")
        assert len(side.score(["x"])) == 1
        with pytest.raises(BranchBusy):
            session.close()
        return [float(len(out.ids)) for out in outs]

    strategy = TreeOfThoughts(depth=1, steps=steps(judgement=Judgement(judge=judge)))
    assert session.run_tree(strategy, PROPOSE).tree


def test_lent_for_reading(session: Session) -> None:
    def accept(branch: Branch, step: str) -> bool:
        fork = branch.fork()
        assert fork.append("?").score(["s"]) and len(fork) == len(branch) + 1
        for change in (branch.prune, lambda: branch.append("x"), lambda: session.decode(branch)):
            with pytest.raises(BranchBusy):
                change()
        return True

    def propose(session: Session, nodes: list[Branch]) -> list[list[Branch]]:
        return [node.fork(2) for node in nodes]

    strategy = TreeOfThoughts(depth=1, steps=Steps(propose=propose, accept=accept))
    assert len(session.run_tree(strategy, PROPOSE).tree) == 2


def test_what_was_submitted_on_a_lent_branch_ends_with_the_loan(session: Session) -> None:
    streams: list[Any] = []

    def judge(session: Session, nodes: list[Branch]) -> list[float]:
        for node in nodes:
            stream = session.stream(node, max_tokens=1000, ignore_eos=True)
            assert next(stream)
            streams.append(stream)
        return [0.0] * len(nodes)

    strategy = TreeOfThoughts(depth=1, steps=steps(judgement=Judgement(judge=judge)))
    result = session.run_tree(strategy, PROPOSE)
    assert len(streams) == len(result.tree) > 1
    for stream in streams:
        assert len(list(stream)) < 200  # what was there when it ended


def test_pruning_what_is_lent_is_an_error(session: Session) -> None:
    def judge(session: Session, nodes: list[Branch]) -> list[float]:
        nodes[0].prune()
        return [0.0] * len(nodes)

    with pytest.raises(BranchEmpty):
        session.run_tree(TreeOfThoughts(steps=steps(judgement=Judgement(judge=judge))), PROPOSE)
    assert session.stats().branches_live == 0


def test_ctrl_c_ends_a_search(session: Session) -> None:
    def on_event(event: SearchEvent) -> None:
        if event.thought.node == 1 and event.kind == "proposed":
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        session.run_tree(Mcts(on_event=on_event), PROPOSE)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):  # on a CPU in the first, on a GPU in a later one
        for _ in range(1000):
            session.run_tree(BeamSearch(width=16, max_tokens=400), PROPOSE)
    timer.join()
    assert session.stats().branches_live == 0


def raising(name: str) -> Any:
    def fail(*arguments: object) -> Any:
        raise KeyError(name)

    makers: dict[str, Callable[[], Any]] = {
        "propose": lambda: TreeOfThoughts(steps=Steps(propose=fail)),
        "accept": lambda: TreeOfThoughts(steps=steps(accept=fail)),
        "judge": lambda: BestFirst(steps=steps(judgement=Judgement(judge=fail))),
        "evaluate": lambda: DepthFirst(steps=steps(judgement=Judgement(evaluate=fail))),
        "evaluate in threads": lambda: TreeOfThoughts(
            steps=steps(judgement=Judgement(evaluate=fail, evaluator_threads=3), speculate=4)
        ),
        "prior": lambda: Mcts(steps=steps(prior=fail)),
        "solved": lambda: TreeOfThoughts(steps=steps(), solved=fail),
        "on_event": lambda: Mcts(steps=steps(), on_event=fail),
        "answer": lambda: SelfConsistency(n=3, sampling=DecodeParams(max_tokens=4), answer=fail),
        "criticise": lambda: SelfRefinement(draft=DecodeParams(max_tokens=4), criticise=fail),
        "begin": lambda: ForkJoin(open="1", child=DecodeParams(max_tokens=4), begin=fail),
        "solved of answers": lambda: BestOfN(
            n=3, sampling=DecodeParams(max_tokens=4), first_success=True, solved=fail
        ),
        "on_event of beams": lambda: BeamSearch(width=2, max_tokens=4, on_event=fail),
    }
    return makers[name]()


@pytest.mark.parametrize(
    "name",
    ["propose", "accept", "judge", "evaluate", "evaluate in threads", "prior", "solved"]
    + ["on_event", "answer", "criticise", "begin", "solved of answers", "on_event of beams"],
)
def test_what_a_callable_raises_comes_out_and_nothing_is_left(small: Engine, name: str) -> None:
    with small.session(seed=7) as session:
        before = session.stats()
        with pytest.raises(KeyError, match=name) as raised:
            session.run_tree(raising(name), PROPOSE)
        after = session.stats()
        assert after.pages_used == before.pages_used
        assert after.branches_live == 0
        del raised
        strategy = TreeOfThoughts(steps=steps(), solved=is_solution)
        assert session.run_tree(strategy, PROPOSE).solved


@pytest.mark.parametrize(
    ("propose", "error", "match"),
    [
        (lambda session, nodes: None, TypeError, "propose: got None; expected a list"),
        (lambda session, nodes: [[1]], TypeError, "propose: got an int; expected a Branch"),
        (lambda session, nodes: [nodes], Error, "expected a fork of it"),
        (lambda session, nodes: [[nodes[0].fork()] * 2], BranchEmpty, "returned twice"),
        (lambda session, nodes: [], Error, "returned 0 lists of steps; expected 1"),
        (
            lambda session, nodes: [[session.engine.session().prefill(PROPOSE)]],
            Error,
            "belongs to another session",
        ),
    ],
)
def test_propose_returns_branches_of_its_own(
    session: Session, propose: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        session.run_tree(TreeOfThoughts(steps=Steps(propose=propose)), PROPOSE)


def test_wrong_fields_are_type_errors(session: Session) -> None:
    strategy = TreeOfThoughts()
    strategy.depth = "3"  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"TreeOfThoughts\.depth: got a str"):
        session.run_tree(strategy, PROPOSE)
    strategy = TreeOfThoughts(solved=True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"TreeOfThoughts\.solved: got a bool; expected a callable"):
        session.run_tree(strategy, PROPOSE)
    judgement = Judgement(judge=lambda session, nodes: ["high"] * len(nodes))  # type: ignore
    with pytest.raises(TypeError, match="judge: got a str; expected a number"):
        session.run_tree(TreeOfThoughts(steps=Steps(judgement=judgement)), PROPOSE)


def test_children_cut_short_end_the_search(engine: Engine) -> None:
    def propose(session: Session, nodes: list[Branch]) -> list[list[Branch]]:
        lists = [node.fork(8) for node in nodes]
        children = [child for children in lists for child in children]
        session.decode(children, max_tokens=32, stop=["\n"], temperature=1.0)
        return lists

    with engine.session(seed=7, budget=Budget(tokens=100)) as session:
        result = session.run_tree(TreeOfThoughts(steps=Steps(propose=propose)), PROPOSE)
        assert result.finish is Finish.BUDGET
    with engine.session(seed=7) as session:
        strategy = TreeOfThoughts(
            steps=Steps(propose=lambda session, nodes: Proposals([[]], Finish.CANCELLED))
        )
        assert session.run_tree(strategy, PROPOSE).finish is Finish.CANCELLED


def test_cancel_from_a_callable(session: Session) -> None:
    cancel = dendrite.Cancel()
    strategy = Mcts(steps=steps(), cancel=cancel, on_event=lambda event: cancel.cancel())
    result = session.run_tree(strategy, PROPOSE)
    assert result.finish is Finish.CANCELLED and not result.solved


# --- small things


def test_expand_until(session: Session) -> None:
    newline = int(session.engine.encode("\n", add_special=False)[-1])
    node = session.prefill(PROPOSE)
    proposals = search.expand_until(session, [node], newline, 0.01, 32)
    assert node and len(proposals.children) == 1 and proposals.finish is Finish.RUNNING
    for child in proposals.children[0]:
        assert child.last_token == newline
        assert child.logprob - node.logprob >= math.log(0.01)


def test_scores() -> None:
    assert search.uct_score(0.5, 0, 10, 1.4) == math.inf
    assert search.uct_score(0.5, 2, 8, 1.0) == pytest.approx(0.5 + math.sqrt(math.log(8) / 2))
    assert search.puct_score(0.5, 0.25, 3, 16, 2.0) == pytest.approx(0.5 + 2 * 0.25 * 4 / 4)


@pytest.mark.parametrize(
    "kind",
    [*STEPWISE, BeamSearch, BestOfN, SelfConsistency, SelfRefinement, Steps, Judgement, Critique],
)
def test_defaults_are_those_of_cpp(kind: Any) -> None:
    text = "".join(path.read_text() for path in (ROOT / "include/dendrite/search").glob("*.h"))
    found = re.search(rf"^struct {kind.__name__} {{\n(.*?)^}};", text, re.S | re.M)
    assert found is not None
    fields = dict(re.findall(r"^  [\w:<>]+ (\w+) = ([^;{]+);", found[1], re.M))
    made = kind()
    numbers = {f: v for f, v in fields.items() if re.fullmatch(r"-?[\d.]+|true|false", v)}
    assert numbers or kind is Judgement
    for name, value in numbers.items():
        assert getattr(made, name) == json.loads(value), name
    members = set(re.findall(r"(\w+)(?:\{[^}]*\}| = [^;]+)?;", re.sub(r"//.*", "", found[1])))
    assert members <= {field.name for field in dataclasses.fields(kind)}
