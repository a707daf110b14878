"""Monte-Carlo tree search with rollouts: no judge is needed.

The model proposes steps, plays each to its end a few times, and the rules of the game say which
ends are worth something.
"""

import sys

from puzzle import after_steps

from dendrite import Budget, DecodeParams, Engine, Mcts
from dendrite.search import Rule

numbers = [1, 5, 9, 13]


def is_legal(branch, step):
    return after_steps(numbers, branch.text) is not None


def evaluate(rollout):
    """How near the last legal state of a rollout comes: in threads beside the engine."""
    lines = rollout.history.splitlines(keepends=True)
    legal = 0
    while legal < len(lines) and after_steps(numbers, "".join(lines[: legal + 1])):
        legal += 1
    return 0.25 * legal


def is_solution(branch, step):
    lines = branch.text.splitlines(keepends=True)  # a rollout may go on after the solution
    return any(after_steps(numbers, "".join(lines[:n])) == [24] for n in range(1, len(lines) + 1))


engine = Engine(sys.argv[1] if len(sys.argv) > 1 else "models/dendrite-24")
with engine.session(seed=3, budget=Budget(tokens=50_000)) as session:
    strategy = Mcts(rule=Rule.PUCT)  # the model's probability of a step is its prior
    strategy.steps.candidates = 12
    strategy.steps.accept = is_legal
    strategy.rollouts = 4
    strategy.rollout = DecodeParams(max_tokens=40, temperature=1.0)
    strategy.steps.judgement.evaluator_threads = 2
    strategy.steps.judgement.evaluate = evaluate
    strategy.solved = is_solution

    result = session.run_tree(strategy, "S 24: 1 5 9 13\n")
    print(f"{'solved' if result.solved else 'not solved'} after {len(result.tree)} thoughts")
    print(result.branch.text if result.branch else "", end="")
    sys.exit(0 if result.solved else 1)
