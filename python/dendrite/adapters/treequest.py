"""TreeQuest's algorithms over branches.

    pip install ".[treequest]"  # in a clone of Dendrite

    import treequest
    from dendrite.adapters.treequest import run

    algo = treequest.ABMCTSA()
    state = run(algo, session, session.prefill(puzzle), "solve", score, steps=10, temperature=1.0)
    [(node, value)] = treequest.top_k(state, algo, k=1)

A state of the tree is a `dendrite.Node`: TreeQuest deep-copies states, and a Node's copies are
itself. `run` decodes a batch of trials at once; `generate_fn` makes a function for ``algo.step``,
which decodes one at a time. Both draw from the session's seed; TreeQuest's own draws come from
numpy's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from treequest import Algorithm

from dendrite import Branch, Generation, Node, Session

__all__ = ["Score", "generate_fn", "run"]

AlgoState = TypeVar("AlgoState")

Score = Callable[[Branch, Generation], float]
"""What a trial is worth, in [0, 1], by its branch and what it generated. It may go on with the
branch, to ask a judge: the trial's Node was taken before."""


def run(  # type: ignore[type-var]  # where treequest is not installed
    algo: Algorithm[Node, AlgoState],
    session: Session,
    root: Branch | Node,
    action: str,
    score: Score,
    steps: int,
    batch: int = 8,
    **params: Any,
) -> AlgoState:  # type: ignore[type-var]
    """Grows a tree by `steps` batches of at most `batch` trials, and returns the algorithm's state.

    algo: one of TreeQuest's.
    session: decodes the trials.
    action: what TreeQuest calls them.
    score: what a trial is worth, see Score.

    A trial goes on from its parent's Node, or from `root`, by one decode with `params`, the
    fields of DecodeParams. Where an algorithm's queue is shorter than the batch, StandardMCTS's
    and TreeOfThoughtsBFSAlgo's, TreeQuest hands out what is in it more than once, to refuse
    what comes late; each is decoded once here, so none is refused. Raises TreeQuest's
    RuntimeError for a score outside [0, 1].
    """
    state = algo.init_tree()
    for _ in range(steps):
        state, trials = algo.ask_batch(state, batch, [action])
        trials = trials[: _wanted(state, action, batch)]
        parents = [root if t.parent_state is None else t.parent_state for t in trials]
        branches = [parent.fork() for parent in parents]
        try:
            generated = session.decode(branches, **params)
            for trial, branch, generation in zip(trials, branches, generated, strict=True):
                node = branch.node()
                state = algo.tell(state, trial.trial_id, (node, score(branch, generation)))
        finally:
            session.prune(branches)
    return state


def _wanted(state: Any, action: str, batch: int) -> int:
    """How many of a batch's trials the algorithm will take."""
    queues = getattr(getattr(state, "trial_store", None), "next_nodes", None)
    return batch if queues is None else len(queues[action])


def generate_fn(
    session: Session, root: Branch | Node, score: Score, **params: Any
) -> Callable[[Node | None], tuple[Node, float]]:
    """A function for ``algo.step(state, {action: …})``: one trial from a node, or from `root`.

    `session` decodes it with `params`, and `score` judges it.
    """

    def generate(parent: Node | None) -> tuple[Node, float]:
        with (root if parent is None else parent).fork() as branch:
            generation = session.decode(branch, **params)
            node = branch.node()
            return node, score(branch, generation)

    return generate
