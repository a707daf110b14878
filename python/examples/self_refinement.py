"""Self-refinement: draft a solution, criticise it, rewind to the first weak step and try again.

The critic is the rules of the game and the same model on a branch of its own. What came before a
weak step is never computed again.
"""

import sys

from puzzle import after_steps

from dendrite import Critique, DecodeParams, Engine, SelfRefinement

numbers = [1, 5, 9, 13]


def length_of(draft, lines):
    """The tokens of a draft up to the end of its first `lines` lines."""
    length = draft.prompt_length
    while lines > 0 and length < len(draft):
        lines -= engine.decode(draft.tokens[length : length + 1]) == "\n"
        length += 1
    return length


def criticise_one(draft):
    """Good until a step that is illegal or after which the model thinks 24 out of reach."""
    steps, good = "", 0
    for line in draft.text.splitlines()[:3]:
        steps += line + "\n"
        left = after_steps(numbers, steps)
        if left == [24]:
            return Critique(value=3, good=True)
        if left is None or len(left) == 1:
            break
        sure, impossible = judge.fork().append(steps).score(["?s", "?i"])  # "?sure", "?impossible"
        if sure.logprob < impossible.logprob:
            break
        good += 1
    return Critique(value=good, keep=length_of(draft, good))


def criticise(session, drafts):
    critiques = []
    for draft in drafts:
        print(f"draft\n{draft.text}", end="")
        critiques.append(criticise_one(draft))
        print(f"  {critiques[-1].value} steps are good")
    return critiques


engine = Engine(sys.argv[1] if len(sys.argv) > 1 else "models/dendrite-24")
with engine.session(seed=3) as session:
    judge = session.prefill("P 24: 1 5 9 13\n")
    strategy = SelfRefinement(rounds=40, criticise=criticise)
    strategy.draft = DecodeParams(max_tokens=100, temperature=0)
    strategy.revision = DecodeParams(max_tokens=100, temperature=1)
    result = session.run_tree(strategy, "S 24: 1 5 9 13\n")
    if not result.solved:
        sys.exit("no solution within 40 revisions")
    print("solved: every step is legal and the last leaves 24")
