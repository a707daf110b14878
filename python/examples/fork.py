"""Eight next steps for one prompt: the prompt is computed once and its pages are shared."""

import sys

from dendrite import Engine

engine = Engine(sys.argv[1] if len(sys.argv) > 1 else "models/dendrite-24")
with engine.session(seed=7) as session:
    root = session.prefill("P 24: 4 5 6 10\n")  # this model's prompt for "propose a step"
    branches = root.fork(8)  # O(1) each; each draws its own numbers
    for step in session.decode(branches, max_tokens=32, stop=["\n"], temperature=1.0):
        print(step.text)
    print(f"{session.stats().fork_ns:g} ns a fork")
