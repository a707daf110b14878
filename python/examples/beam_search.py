"""Beam search over tokens: the likeliest steps for one puzzle, each up to the end of its line.

The distributions of all beams are one batch a token.
"""

import sys

from dendrite import BeamSearch, Engine

engine = Engine(sys.argv[1] if len(sys.argv) > 1 else "models/dendrite-24")
with engine.session() as session:
    strategy = BeamSearch(width=8, max_tokens=32, length_penalty=0)  # by sum of log-probs
    strategy.stop_tokens = [engine.encode("\n", add_special=False)[-1]]
    result = session.run_tree(strategy, "P 24: 4 5 6 10\n")
    if not result.path:
        sys.exit(1)
    print(f"{result.path[-1].value:8.3f}  {result.branch.text}", end="")
    for other in result.others:
        print(f"{other.value:8.3f}  {other.branch.text}", end="")
