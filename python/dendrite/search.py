"""Search strategies: C++'s, with Python callables for what belongs to the problem.

    from dendrite import Engine
    from dendrite.search import TreeOfThoughts

    strategy = TreeOfThoughts(depth=3, width=5)
    strategy.steps.accept = lambda branch, step: is_legal(branch.text)
    strategy.solved = lambda branch, step: is_solution(branch.text)
    result = session.run_tree(strategy, prompt)

Callables are called in the thread that searches, `evaluate` also in threads beside it. The
session's calls work in them. Branches that they are given are lent: their handles are empty when
the callable has returned; fork() to keep one, or to go on from the one of `solved`, `accept`,
`answer` and `prior`, which is for reading. What a callable raises ends the search and comes out.

Under a constraint on the root (run_tree's, or Branch.constrain) every text of the search is held to
it, from the prompt to the end. Steps end at a line end inside of the text, or with the text; a
thought that no step follows and whose text may end there is a leaf whatever its depth. A judge that
asks the model about a candidate does so on a fork that it frees (constrain(None)): score gives -inf
to a text that the constraint refuses.

A strategy of one's own is any object with `run(session, root) -> SearchResult`. What it generates
by the session that it is given becomes the result's tree, where it makes none itself:

    class Longest:
        def run(self, session, root):
            branches = root.fork(4)
            session.decode(branches, max_tokens=64, temperature=1.0)
            return SearchResult(branch=max(branches, key=len))

    session.run_tree(Longest(), prompt, trace="search.jsonl")  # a notebook draws what it returns
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dendrite import _core, _doors, _models
from dendrite._constraint import Constraint
from dendrite._core import Branch, Cancel, Error, Rule, majority_confidence, puct_score, uct_score
from dendrite._params import Budget  # noqa: F401 - C++ looks here for the types of fields
from dendrite._records import (
    Candidate,
    Critique,
    EventKind,
    Proposals,
    SearchEvent,
    SearchResult,
    Thought,
    ThoughtRecord,
    Vote,
)
from dendrite._strategies import (
    BeamSearch,
    BestFirst,
    BestOfN,
    BuiltIn,
    DepthFirst,
    ForkJoin,
    Judgement,
    Mcts,
    SelfConsistency,
    SelfRefinement,
    Steps,
    TreeOfThoughts,
)
from dendrite._types import Prompt

if TYPE_CHECKING:
    from dendrite._aio_calls import EvaluatorTasks
    from dendrite._session import Session, Strategy

__all__ = [
    "BeamSearch",
    "BestFirst",
    "BestOfN",
    "Candidate",
    "Critique",
    "DepthFirst",
    "EventKind",
    "ForkJoin",
    "Judgement",
    "Mcts",
    "Proposals",
    "Rule",
    "SearchEvent",
    "SearchResult",
    "SelfConsistency",
    "SelfRefinement",
    "Steps",
    "Thought",
    "ThoughtRecord",
    "TreeOfThoughts",
    "Vote",
    "expand_until",
    "majority_confidence",
    "puct_score",
    "run_tree",
    "uct_score",
]

def expand_until(
    session: Session,
    nodes: Sequence[Branch],
    stop_token: int,
    min_prob: float,
    max_tokens: int,
    cancel: Cancel | None = None,
) -> Proposals:
    """All continuations of each node up to `stop_token` of at least that probability (> 0).

    A wide expansion over forked branches, one batch a token; each child ends with `stop_token`. It
    is what a `propose` may return.

    session: that of the nodes.
    nodes: branches, which are not changed.
    stop_token: ends a continuation.
    min_prob: what each continuation has at least, as a whole.
    max_tokens: of a continuation; longer ones are dropped.
    cancel: ends it from anywhere.
    """
    handle = getattr(session, "_handle", None)
    if not isinstance(handle, _core.SessionHandle):
        raise _doors.wrong("session", session, "a Session")
    children, finish = _core.expand_until(
        handle, nodes, stop_token, min_prob, max_tokens, cancel
    )
    return Proposals(children, finish)


def run_tree(
    session: Session,
    strategy: Strategy,
    prompt: Prompt | Branch,
    *,
    constraint: Constraint | None = None,
    trace: str | os.PathLike[str] | None = None,
    progress: bool = False,
    cancel: Cancel | None = None,
    tasks: EvaluatorTasks | None = None,
) -> SearchResult:
    """See Session.run_tree, which calls this, as AsyncSession.run_tree does.

    `cancel` ends the search besides the strategy's own; `tasks` runs coroutines for evaluate.
    """
    built_in = strategy if isinstance(strategy, BuiltIn) else None
    if isinstance(strategy, type) or not callable(getattr(strategy, "run", None)):
        raise _doors.wrong("strategy", strategy, "one of dendrite.search, or an object with run")
    if not isinstance(progress, bool):
        raise _doors.wrong("progress", progress, "a bool")
    if progress and built_in is None:
        raise TypeError(
            f"progress: {type(strategy).__name__} tells of no thoughts while it runs; expected a "
            "strategy of dendrite.search"
        )
    if isinstance(prompt, Branch):
        root = _core.take(session._handle, prompt)
    else:
        root = session.prefill(prompt, cancel=cancel or (built_in.cancel if built_in else None))
    if constraint is not None:
        root.constrain(constraint)
    wanted = None
    if trace is not None:
        wanted = (_doors.path("trace", trace), _text_of(session, prompt, root), session.seed)
    if built_in is None:
        result = _run_own(session, strategy, root, wanted)
    elif not progress:
        result = built_in._run(session, root, wanted, built_in.on_event, cancel, tasks)
    else:
        from dendrite.notebook import Progress

        with Progress(built_in.on_event) as shown:
            result = built_in._run(session, root, wanted, shown.on, cancel, tasks)
    if result.branch is not None and result.branch and session.engine.info.has_tokenizer:
        result.text = result.branch.text
    return result


def cancel_own(strategy: Strategy) -> None:
    """Cancels a strategy that is not of this module, where it has a Cancel."""
    cancel = getattr(strategy, "cancel", None)
    if isinstance(cancel, Cancel) and not isinstance(strategy, BuiltIn):
        cancel.cancel()


def _text_of(session: Session, prompt: Prompt | Branch, root: Branch) -> str:
    if isinstance(prompt, str):
        return prompt
    return session.engine.decode(root.tokens) if session.engine.info.has_tokenizer else ""


def _run_own(
    session: Session, strategy: Strategy, root: Branch, trace: tuple[str, str, int] | None
) -> SearchResult:
    """A strategy of the caller's own: its thoughts are what it generates, see RecordedSession."""
    from dendrite._recording import RecordedSession

    recorded = RecordedSession(session, root)
    if trace is None:
        result = _checked(strategy, strategy.run(recorded, root))
        recorded.complete(result)
        return result
    path, prompt, seed = trace
    info = session.engine.info
    header = {
        "trace": 1,
        "strategy": type(strategy).__name__,
        "params": {},
        "seed": seed,
        "prompt": prompt,
        "model": _models.name_of(info.model_path),
        "numerics": info.numerics_key,
    }
    try:
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as error:
        raise Error(f"trace: {path} cannot be written; expected a path for a file") from error
    with file:
        file.write(_line(header))
        result = _checked(strategy, strategy.run(recorded, root))
        if recorded.complete(result):
            file.writelines(map(_line, recorded.lines()))
        end: dict[str, Any] = {
            "solved": result.solved,
            "finish": result.finish.name.lower(),
            "path": [step.node for step in result.path],
            "nodes": len(result.tree),
        }
        if result.votes:
            end["votes"] = [[vote.answer, vote.count] for vote in result.votes]
        file.write(_line({"result": end}))
    return result


def _checked(strategy: Strategy, result: object) -> SearchResult:
    if isinstance(result, SearchResult):
        return result
    raise TypeError(
        f"{type(strategy).__name__}.run: got a {type(result).__name__}; expected a SearchResult"
    )


def _line(value: dict[str, Any]) -> str:
    """Numbers that JSON has no word for are null, as C++ writes them."""
    value = {
        name: None if isinstance(one, float) and not math.isfinite(one) else one
        for name, one in value.items()
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
