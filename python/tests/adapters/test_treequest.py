"""The real TreeQuest over branches of models/dendrite-24."""

import copy
import math

import pytest

pytest.importorskip("treequest", reason="TreeQuest is not installed (see treequest.txt)")

import numpy as np
import treequest

from dendrite.adapters.treequest import generate_fn, run

from .game24 import left_of, probability, prompt, puzzles

ALGORITHMS = {
    "AB-MCTS-A": treequest.ABMCTSA,
    "MCTS": lambda: treequest.StandardMCTS(samples_per_action=4),
    "ToT": lambda: treequest.TreeOfThoughtsBFSAlgo(breadth_limit=3, size_limit=4),
}
MOVE = {"stop": ["\n"], "temperature": 1.0, "max_tokens": 40}


def start(session, numbers):
    """Where the model writes a solution, a move a line."""
    return session.prefill(prompt(numbers, "S"))


def scorer(session, numbers):
    """1 for a solution; what the model judges while numbers are left; 0 for all else."""

    def score(branch, generation):
        left = left_of(numbers, branch.text)
        if left is None or len(left) == 1:
            return float(left == (24,))
        with session.prefill(prompt(numbers) + branch.text + "?") as judge:
            sure, impossible = judge.score(["s", "i"])
        return 0.9 * probability(sure.logprob, impossible.logprob)

    return score


@pytest.mark.parametrize("name", ALGORITHMS)
def test_solves_puzzles_with_four_trials_a_decode(engine_24, name):
    solved, widest = 0, 0

    def note(events):
        nonlocal widest
        widest = max(widest, len(events))

    for numbers in puzzles(4):
        np.random.seed(0)
        with engine_24.session(seed=7) as session:
            algo = ALGORITHMS[name]()
            root = start(session, numbers)
            state = run(
                algo,
                session,
                root,
                "move",
                scorer(session, numbers),
                12,
                batch=4,
                on_step=note,
                **MOVE,
            )
            [(node, value)] = treequest.top_k(state, algo, k=1)
            solved += value == 1.0
            assert (value == 1.0) == (left_of(numbers, node.text) == (24,))
    assert widest == 4
    assert solved >= 2


def test_step_by_step_with_a_plain_function(engine_24):
    [numbers] = puzzles(1)
    with engine_24.session(seed=7) as session:
        algo = treequest.StandardMCTS()
        root = start(session, numbers).node()
        move = generate_fn(session, root, scorer(session, numbers), **MOVE)
        state = algo.init_tree()
        for _ in range(6):
            state = algo.step(state, {"move": move})  # deep-copies the tree and its Nodes
        assert len(state.tree) == 7
        live = session.stats().branches_live
        copy.deepcopy(state)
        assert session.stats().branches_live == live
        for node, _ in algo.get_state_score_pairs(state):
            assert left_of(numbers, node.text) is not None


def test_no_trial_is_decoded_to_be_refused(engine_24, caplog):
    [numbers] = puzzles(1)
    widths = set()
    with engine_24.session() as session:
        root = start(session, numbers)
        algo = treequest.StandardMCTS(samples_per_action=2)
        state = run(
            algo,
            session,
            root,
            "move",
            scorer(session, numbers),
            3,
            batch=6,
            on_step=lambda events: widths.add(len(events)) or True,
            **MOVE,
        )
        assert len(state.tree) == 1 + 3 * 2
        assert session.stats().branches_live == 1 + 3 * 2
    assert max(widths) == 2
    assert not caplog.records


@pytest.mark.parametrize("value", [1.5, -0.1, math.nan])
def test_a_score_out_of_range_raises_and_frees_the_batch(engine_24, value):
    with engine_24.session() as session:
        root = start(session, (4, 5, 6, 10))
        with pytest.raises(RuntimeError, match="between 0 and 1") as raised:
            run(treequest.ABMCTSA(), session, root, "move", lambda *_: value, 1, **MOVE)
        # The root; and the trial's Node, which the exception's traceback holds.
        assert raised and session.stats().branches_live == 2


def test_equal_seeds_grow_equal_trees(engine_24):
    trees = []
    for _ in range(2):
        np.random.seed(1)
        with engine_24.session(seed=3) as session:
            [numbers] = puzzles(1)
            root = start(session, numbers)
            algo = treequest.ABMCTSA()
            state = run(algo, session, root, "move", scorer(session, numbers), 4, batch=4, **MOVE)
            pairs = algo.get_state_score_pairs(state)
            trees.append([(node.text, value) for node, value in pairs])
    assert trees[0] == trees[1]
