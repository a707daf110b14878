"""Log-probabilities of several continuations of one prompt.

What they have in common is computed once, and the branch stays as it was.
"""

import sys

from dendrite import Engine

engine = Engine(sys.argv[1] if len(sys.argv) > 1 else "models/dendrite-24")
with engine.session() as session:
    puzzle = session.prefill("P 24: 4 5 6 10\n")  # "propose a first step"

    steps = [
        "10-4=6 | 5 6 6\n",  # legal, and leads to 24
        "10-5=5 | 4 5 6\n",  # legal
        "10-5=6 | 4 6 6\n",  # wrong arithmetic
        "10-5=5 | 4 5 5\n",  # wrong rest
    ]
    for step, score in zip(steps, puzzle.score(steps)):
        print(f"{score.logprob:8.3f}  {step}", end="")

    # select() appends the likeliest one; score() on many branches at once is Session.score.
    best = puzzle.select(steps)
    stats = session.stats()
    print(f"taken: {steps[best]}", end="")
    print(f"{stats.tokens_computed} tokens computed, ", end="")
    print(f"{stats.tokens_independent} as independent requests")
