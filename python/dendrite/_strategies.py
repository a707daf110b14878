"""The strategies of C++, as dataclasses: what each takes. People import them from dendrite.search.

What a field is called and holds is what C++ reads (python/src/search.cpp). See dendrite.search for
where callables are called and what they are lent.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from dendrite import _core, _doors
from dendrite._compose import Mode, Repair
from dendrite._compose import native as native_compose
from dendrite._constraint import Constraint
from dendrite._core import Branch, Cancel, Rule
from dendrite._documented import document
from dendrite._params import Budget, DecodeParams
from dendrite._records import Candidate, Critique, Proposals, SearchEvent, SearchResult, Thought

if TYPE_CHECKING:
    from dendrite._aio_calls import EvaluatorTasks
    from dendrite._session import Session

Test: TypeAlias = Callable[[Branch, str], bool]
"""Of a branch and a text: its step, or its answer."""
Listener: TypeAlias = Callable[[SearchEvent], object]
"""Told of every thought."""

_ASYNC_EVALUATIONS = 16
"""Coroutines at once where nothing else is said."""


@dataclasses.dataclass(kw_only=True)
class Judgement:
    """What a thought is worth. At most one of judge and evaluate may be set."""

    judge: Callable[[Session, list[Branch]], Sequence[float]] | None = None
    """A value for each candidate, by the model (score: forks that are dropped) or by rules."""
    evaluate: Callable[[Candidate], Any] | None = None
    """A value for one candidate without the model, for example by running a test. A coroutine
    function in session.aio.run_tree: it runs in the event loop."""
    evaluator_threads: int = 0
    """That call `evaluate`, several at once; 0: the search's own (with an executor as many as that
    has workers; of a coroutine function 16 at once)."""
    executor: Executor | None = None
    """Runs `evaluate` instead of these threads, which wait for it. Python runs in one thread at a
    time: tests that compute want a ProcessPoolExecutor (`evaluate` must then be picklable)."""

    def _evaluator(
        self, tasks: EvaluatorTasks | None
    ) -> tuple[Callable[[Candidate], float] | None, int]:
        """What C++ calls, and in how many threads."""
        evaluate, executor, threads = self.evaluate, self.executor, self.evaluator_threads
        if evaluate is not None and not callable(evaluate):
            raise _doors.wrong("Judgement.evaluate", evaluate, "a callable or None")
        if executor is not None and not isinstance(executor, Executor):
            raise _doors.wrong("Judgement.executor", executor, "an Executor or None")
        if evaluate is not None and inspect.iscoroutinefunction(evaluate):
            if tasks is None or executor is not None:
                raise TypeError(
                    "evaluate: got a coroutine function; expected session.aio.run_tree, which runs "
                    "it in the event loop, and no executor"
                )
            return (lambda candidate: tasks.run(evaluate(candidate)), threads or _ASYNC_EVALUATIONS)
        if executor is None:
            return evaluate, threads
        if evaluate is None:
            raise TypeError("executor: got one and no evaluate; expected a function for it to run")
        workers = getattr(executor, "_max_workers", None) or os.cpu_count() or 1
        return (
            lambda candidate: executor.submit(evaluate, candidate).result(),
            threads or workers,
        )


@dataclasses.dataclass(kw_only=True)
class Steps:
    """Where steps come from and what they are worth: for strategies that grow a tree of steps."""

    propose: Callable[[Session, list[Branch]], list[list[Branch]] | Proposals] | None = None
    """Children of all these nodes, in one batch where it can; they are taken out of their handles.
    What a node gets must not depend on the others. Default: `candidates` samples a node up to a
    newline, equal texts once; none from a node whose constrained text can only end. A search whose
    children ended with BUDGET or CANCELLED ends so."""
    accept: Test | None = None
    """Whether a step may be kept at all (for example: it is legal). Default: yes."""
    judgement: Judgement = dataclasses.field(default_factory=Judgement)
    """Default: the mean log-prob of the step's tokens (MCTS: e to that power)."""
    prior: Callable[[Thought], float] | None = None
    """How likely a step is, >= 0: PUCT's prior before it is normalised over siblings, and what
    speculation goes by. Default: the model's probability of the step."""
    candidates: int = 8
    """Of the default proposer."""
    temperature: float = 1.0
    """Of the default proposer."""
    max_step_tokens: int = 128
    """Of the default proposer."""
    propose_groups: int = 1
    """With evaluator threads: nodes are proposed from in so many calls, and candidates of one are
    evaluated while the next is computed."""
    speculate: int = 0
    """With evaluator threads: so many of the likeliest new steps are proposed from before their
    values are known, then used or pruned. The same result, for more tokens computed."""


@dataclasses.dataclass(kw_only=True)
class BuiltIn:
    """What all strategies of C++ share."""

    solved: Test | None = None
    """Whether a thought is a solution, which ends the search. Default: none is."""
    on_event: Listener | None = None
    """Told of every thought."""
    cancel: Cancel | None = None
    """Looked at between rounds and before every step of the engine."""

    _native: ClassVar[Callable[..., Any]]

    def run(self, session: Session, root: Branch) -> SearchResult:
        """Searches from `root`, which is the search's own from now on."""
        return self._run(session, root, None, self.on_event, None, None)

    def _run(
        self,
        session: Session,
        root: Branch,
        trace: tuple[str, str, int] | None,
        on_event: Listener | None,
        cancel: Cancel | None,
        tasks: EvaluatorTasks | None,
    ) -> SearchResult:
        if on_event is not None and not callable(on_event):
            raise _doors.wrong("on_event", on_event, "a callable or None")
        native = type(self)._native
        result: SearchResult = native(self, session, root, trace, on_event, cancel, tasks)
        return result


@dataclasses.dataclass(kw_only=True)
class TreeOfThoughts(BuiltIn):
    """Breadth-first Tree-of-Thoughts (Yao et al. 2023, arXiv:2305.10601, algorithm 1).

    Proposes steps from every node of the frontier, judges them all, keeps the best `width`, repeats
    to `depth`. `solved` is asked of what is kept, best first. Unsolved, the result is the best
    thought of the last depth (and of the leaves before it).
    """

    depth: int = 3
    """Steps from the prompt to a leaf."""
    width: int = 5
    """Thoughts that are kept at each depth."""
    steps: Steps = dataclasses.field(default_factory=Steps)
    """Where steps come from and what they are worth."""

    _native: ClassVar[Callable[..., Any]] = _core.run_tree_of_thoughts


@dataclasses.dataclass(kw_only=True)
class DepthFirst(BuiltIn):
    """Depth-first Tree-of-Thoughts with backtracking (the same, algorithm 2).

    Enters the best child first and comes back for the next where a subtree has no solution; what
    waits keeps its branch, so that coming back computes nothing again. `solved` is asked of what is
    entered. Unsolved, the result is the best leaf.
    """

    depth: int = 3
    """Steps from the prompt to a leaf."""
    width: int = 5
    """Children of a node that are entered at most, best first."""
    threshold: float = -float("inf")
    """Children of a lower value are not entered."""
    max_nodes: int = 0
    """Entered in all; 0: no limit."""
    steps: Steps = dataclasses.field(default_factory=Steps)
    """Where steps come from and what they are worth."""

    _native: ClassVar[Callable[..., Any]] = _core.run_depth_first


@dataclasses.dataclass(kw_only=True)
class BestFirst(BuiltIn):
    """Of all thoughts not yet gone on from, whatever their depth, expands the best `batch` at once.

    Equal values: the one proposed first. `solved` is asked of every judged thought, best first.
    Unsolved, the result is the best leaf.
    """

    depth: int = 3
    """Steps from the prompt to a leaf."""
    batch: int = 1
    """Thoughts that are gone on from at once."""
    max_expansions: int = 0
    """Of nodes, the prompt's included; 0: no limit."""
    max_frontier: int = 0
    """The worst beyond are pruned; 0: no limit."""
    steps: Steps = dataclasses.field(default_factory=Steps)
    """Where steps come from and what they are worth."""

    _native: ClassVar[Callable[..., Any]] = _core.run_best_first


@dataclasses.dataclass(kw_only=True)
class BeamSearch(BuiltIn):
    """Beam search over tokens: keeps the `width` likeliest continuations, one batch a token.

    A finished one ends with a stop token or text, with an end-of-sequence token, or where its
    constraint is complete, and ranks by log-prob / tokens^length_penalty; what `max_tokens` cuts
    off ranks with them. The best is the result, the next `width` - 1 are its `others`. With several
    groups it is diverse beam search (Vijayakumar et al. 2016, arXiv:1610.02424). A thought is a
    token that was kept. `solved` is asked of what finishes, with all of its text.
    """

    width: int = 8
    """Beams, all groups together."""
    max_tokens: int = 256
    """Of a beam."""
    stop_tokens: Sequence[int] = ()
    """Besides the model's end-of-sequence tokens."""
    stop: Sequence[str] = ()
    """A beam ends when its text holds one of these."""
    constraint: Constraint | None = None
    """What the text of every beam must be, from the prompt on. Log-probs are the model's own."""
    length_penalty: float = 1.0
    """0: the sum of log-probs, 1: their mean."""
    groups: int = 1
    """Divides width."""
    diversity: float = 0.5
    """>= 0: what a token costs for each time that an earlier group chose it at the same step."""

    _native: ClassVar[Callable[..., Any]] = _core.run_beam_search


@dataclasses.dataclass(kw_only=True)
class BestOfN(BuiltIn):
    """Many answers in one batch: the one that is a solution, else the one of the highest value.

    The others follow as `others`, solutions first, then by value. `solved` is asked of answers that
    ended by themselves or at max_tokens.
    """

    n: int = 8
    """Answers that are sampled."""
    sampling: DecodeParams = DecodeParams(temperature=1.0)
    """How answers are drawn, and how long they may get."""
    first_success: bool = False
    """Ends the search with the first step in which an answer that ends is a solution."""
    judgement: Judgement = dataclasses.field(default_factory=Judgement)
    """Default: the mean log-prob of the answer's tokens."""

    _native: ClassVar[Callable[..., Any]] = _core.run_best_of_n


@dataclasses.dataclass(kw_only=True)
class SelfConsistency(BuiltIn):
    """The answer that most samples agree on (Wang et al. 2022, arXiv:2203.11171).

    The result is the first sample that gave the winner, a thought's value its answer's share of the
    votes. `solved` is asked of the winner.
    """

    n: int = 16
    """Answers that are sampled, at most."""
    sampling: DecodeParams = DecodeParams(temperature=1.0)
    """How answers are drawn, and how long they may get."""
    answer: Callable[[Branch, str], str | None] | None = None
    """What a sample votes for; None: it does not vote. Default: its text."""
    confidence: float = 1.0
    """Ends as soon as the leading answer is the majority's with this probability, by the Beta
    criterion over the two most frequent answers (Aggarwal et al. 2023, arXiv:2305.11860), or cannot
    be overtaken. 1: never before all are in."""

    _native: ClassVar[Callable[..., Any]] = _core.run_self_consistency


@dataclasses.dataclass(kw_only=True)
class Mcts(BuiltIn):
    """Monte-Carlo tree search over steps, `batch` descents a round, with virtual loss.

    `solved` is asked of every proposed step, and of every rollout with its whole text. Unsolved,
    also when cut short, the result is the path of most visits.
    """

    rule: Rule = Rule.UCT
    """How a descent chooses among children."""
    exploration: float = 1.4
    """c of either score."""
    iterations: int = 64
    """Values backed up."""
    batch: int = 8
    """Descents a round; 1 is the sequential search."""
    depth: int = 3
    """Steps from the prompt at most."""
    loss: float = 0.0
    """The least value: of dead ends, of NaN, of descents under way."""
    rollouts: int = 0
    """Continuations sampled from each new thought above the last depth; its value is the mean of
    theirs. 0: the thought itself is judged."""
    rollout: DecodeParams = DecodeParams(temperature=1.0)
    """How rollouts are drawn, and how long they may get."""
    budget: Budget = Budget()
    """Of this search, looked at between rounds; the session's holds as well."""
    steps: Steps = dataclasses.field(default_factory=Steps)
    """Where steps come from and what they are worth."""

    _native: ClassVar[Callable[..., Any]] = _core.run_mcts


@dataclasses.dataclass(kw_only=True)
class SelfRefinement(BuiltIn):
    """Draft, criticise, revise on a fork (Madaan et al. 2023, arXiv:2303.17651).

    Keeps the best draft of all. A draft is a thought whose parent is the draft that it revises.
    `solved` is asked of drafts, besides Critique.good. A constraint on the root is of each draft: a
    revision begins such a text anew behind feedback, and behind a draft that ended; else it goes on
    with that of its draft, from what is kept of it.
    """

    rounds: int = 4
    """Revisions after the first draft."""
    drafts: int = 1
    """Chains side by side, one batch a round."""
    draft: DecodeParams = DecodeParams()
    """How first drafts are drawn."""
    revision: DecodeParams | None = None
    """None: as `draft`."""
    criticise: Callable[[Session, list[Branch]], list[Critique]] | None = None
    """One critique for each draft, by rules or by the model (on forks, or by score). Required."""

    _native: ClassVar[Callable[..., Any]] = _core.run_self_refinement


@dataclasses.dataclass(kw_only=True)
class ForkJoin(BuiltIn):
    """Forks and joins that the model itself asks for (adaptive parallel decoding).

    Where its text opens a fork, children go on from there, side by side; each ends where it says so
    or at a limit; then they are joined (Session.join) and the text goes on behind all of them (Liu
    et al. 2024, arXiv:2401.06761; Pan et al. 2025, arXiv:2504.15466; Yang et al. 2025,
    arXiv:2506.09991). A thought is what was decoded at one go. Behind a join its parent is the
    first child, and `joined` has all. `solved` is asked of the whole text's branch at its end, with
    what was decoded last.

    A constraint on the root is of the joined text: a child goes on from the fork under it, and
    behind a join it is matched over what the others said as well. So its grammar has to allow one
    child after the other, with before_each and after_all. Where it refuses, the search ends with
    Finish.DEAD_END, at the fork that was not joined.
    """

    open: str = ""
    """The text that opens a fork; this or open_tokens is required."""
    open_tokens: Sequence[int] = ()
    """Tokens that do (those that the tokenizer calls special have no text)."""
    close: str = ""
    """The text that ends a child."""
    close_tokens: Sequence[int] = ()
    """Tokens that do. A child that ends otherwise gets `close`, or the first of these, appended."""
    children: int = 4
    """A fork; they differ by what they draw, so not at temperature 0."""
    begin: Callable[[Branch, str], Sequence[str]] | None = None
    """What each child begins with, one text a child, from the branch that opens the fork and the
    text that it decoded last. None of them: the text goes on without children. Default: `children`
    empty texts."""
    max_forks: int = 8
    """In all; what opens more is text like any other."""
    nesting: int = 1
    """Forks inside of each other; 1: a child opens none."""
    trunk: DecodeParams = DecodeParams()
    """max_tokens: of the text that forks, without its children."""
    child: DecodeParams = DecodeParams()
    """max_tokens: of one child, without its own children."""
    before_each: str = ""
    """Of the join: text between the children's own."""
    after_all: str = ""
    """And after them."""
    repair: Repair | None = None
    """Of what is moved: of every child but the first, the first `repair.first` tokens are computed
    again behind the others. None: Repair(), with which nothing is moved of children of up to 32
    tokens; with short ones a smaller repair is faster, and less exact."""
    mode: Mode = "composed"
    """exact: nothing is moved, all children but the first are computed again."""
    target_kl: float = 0.0
    """As Session.join's."""

    _native: ClassVar[Callable[..., Any]] = _core.run_fork_join

    def _join(self) -> _core.ComposeParams:
        """What C++ takes."""
        return native_compose(self.repair, self.mode, self.target_kl, None)


document(__name__)
