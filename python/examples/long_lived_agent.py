"""An agent that says more than its context holds.

Near the limit its oldest turns are dropped: K and V of the system prompt are kept, those of later
turns moved to where they are now, and only a few tokens of them are computed.
"""

import sys

from dendrite import Engine

LIMIT = 240  # tokens


def newest(turns):
    """The first span, and of the others the last ones that leave half of the limit."""
    first, length = len(turns), turns[0][1]
    while first > 1 and length + turns[first - 1][1] - turns[first - 1][0] <= LIMIT // 2:
        first -= 1
        length += turns[first][1] - turns[first][0]
    return [turns[0], *turns[first:]]


engine = Engine(sys.argv[1] if len(sys.argv) > 1 else "models/dendrite-24")
with engine.session() as session:
    agent = session.prefill("E 24: 24 ok\n")
    turns = [(0, len(agent))]  # the system prompt, then one a turn
    for number in (4, 2, 3, 7, 8, 9, 1, 6, 5, 4, 3, 2):
        begin = len(agent)
        agent.append(f"S 24: {number} 5 6 10\n")
        session.decode(agent, max_tokens=24, temperature=0, ignore_eos=True)
        agent.append("\n")
        turns.append((begin, len(agent)))
        if len(agent) + 48 <= LIMIT:
            continue
        kept = newest(turns)
        agent, report = session.compact(agent, kept)
        print(
            f"{len(kept) - 1} turns kept, {len(turns) - len(kept)} dropped; tokens: "
            f"{report.kept} kept, {report.moved} moved, {report.repaired + report.computed} "
            f"computed, {report.dropped} dropped"
        )
        turns, at = [], 0
        for begin, end in kept:
            turns.append((at, at := at + end - begin))
    print(f"{len(agent)} tokens in {session.stats().tokens_computed} rows")
