"""Drafts from a block drafter's log-probs, and what becomes of them along a text; plain Python and lists."""

import heapq


def chain(places):
    """The likeliest token of each place, as a tree: [(token, parent, rank)], parents first. Each place is
    [(token, logprob)], likeliest first."""
    return [(place[0][0], i - 1, 0) for i, place in enumerate(places)]


def best_tree(places, budget):
    """The `budget` likeliest prefixes, best first (DDTree, arXiv 2604.12989)."""
    nodes, heap, pushed = [], [], 0

    def push(before, parent, depth, rank):
        nonlocal pushed
        if depth < len(places) and rank < len(places[depth]):
            heapq.heappush(heap, (-(before + places[depth][rank][1]), depth, pushed, before, parent, rank))
            pushed += 1

    push(0.0, -1, 0, 0)
    while heap and len(nodes) < budget:
        score, depth, _, before, parent, rank = heapq.heappop(heap)
        nodes.append((places[depth][rank][0], parent, rank))
        push(before, parent, depth, rank + 1)
        push(-score, len(nodes) - 1, depth + 1, 0)
    return nodes


def follow(nodes, text):
    """Ranks of the nodes that `text` takes, from the root on."""
    children = {(parent, token): (i, rank) for i, (token, parent, rank) in enumerate(nodes)}
    at, ranks = -1, []
    for token in text:
        if (at, token) not in children:
            break
        at, rank = children[at, token]
        ranks.append(rank)
    return ranks


class Tally:
    """Rounds along texts. A round drafts after the last known token; what is accepted and one token more are known
    afterwards. The first token of a text comes without a draft."""

    def __init__(self, depth):
        self.rounds = self.tokens = self.drafted = self.accepted = self.siblings = self.sibling_rounds = 0
        self.tried, self.right = [0] * depth, [0] * depth

    def walk(self, text, draft_at):
        """`draft_at(i)`: the tree that is drafted after text[i]."""
        at = 0
        while at + 1 < len(text):
            nodes = draft_at(at)
            ranks = follow(nodes, text[at + 1:])
            room = len(text) - 1 - at
            for i in range(min(len(ranks) + 1, room, len(self.tried))):
                self.tried[i] += 1
                self.right[i] += i < len(ranks)
            self.rounds += 1
            self.drafted += len(nodes)
            self.accepted += len(ranks)
            self.siblings += sum(rank > 0 for rank in ranks)
            self.sibling_rounds += any(rank > 0 for rank in ranks)
            self.tokens += min(len(ranks) + 1, room)
            at += len(ranks) + 1

    def report(self):
        def share(a, b):
            return round(a / b, 4) if b else None

        return {"rounds": self.rounds, "tokens a round": share(self.tokens, self.rounds),
                "drafted a round": share(self.drafted, self.rounds),
                "accepted a round": share(self.accepted, self.rounds),
                "siblings among accepted": share(self.siblings, self.accepted),
                "rounds that take a sibling": share(self.sibling_rounds, self.rounds),
                "right by position, if those before were": [share(*x) for x in zip(self.right, self.tried)],
                "tried by position": self.tried}
