"""Tree-of-Thoughts on the shipped model: it proposes steps and judges them itself.

The rules of the game say what is legal. The engine's part is in run_tree; what belongs to the
problem is in four callables.
"""

import math
import sys

from puzzle import after_steps

from dendrite import Budget, Engine, TreeOfThoughts

numbers = [4, 5, 6, 10]


def is_legal(branch, step):
    return after_steps(numbers, branch.text) is not None


def is_solution(branch, step):
    return after_steps(numbers, branch.text) == [24]


def judge(session, candidates):
    # The model was taught to answer "?" with "sure" or "impossible": all candidates in one batch.
    labels = session.score(candidates, ["?s", "?i"])
    return [1 / (1 + math.exp(bad.logprob - good.logprob)) for good, bad in labels]


def show(event):
    if event.kind == "kept":
        thought = event.thought
        print(f"{'  ' * thought.depth}{thought.text:<22} judge {thought.value:.3f}")


engine = Engine(sys.argv[1] if len(sys.argv) > 1 else "models/dendrite-24")
with engine.session(seed=1, budget=Budget(tokens=20_000)) as session:
    strategy = TreeOfThoughts(depth=3, width=5)  # four numbers take three steps
    strategy.steps.candidates = 16  # samples a node, each up to a newline
    strategy.steps.accept = is_legal
    strategy.steps.judgement.judge = judge
    strategy.solved = is_solution
    strategy.on_event = show

    result = session.run_tree(strategy, "P 24: 4 5 6 10\n")
    print(f"{'solved:' if result.solved else 'not solved'} ({result.finish.name.lower()})")
    for step in result.path:
        print(f"  {step.text}")
    sys.exit(0 if result.solved else 1)
