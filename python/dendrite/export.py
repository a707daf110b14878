"""Trees for training: what a search grew, as flat arrays that a trainer takes in one pass.

Branches of one prompt share their beginnings. Packed as rows, a shared token is computed once a
row; as a tree it is there once. `tree` lays the branches out in depth-first order, so that each
node's descendants follow it, and two numbers a token say who sees whom: q sees k if and only if
``tin[k] <= tin[q] < tout[k]``. Losses stay defined on rows: `Tree.rows` gives those back, and
`Tree.targets` the same sum, each token once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dendrite._core import Branch, Error
from dendrite._documented import document

if TYPE_CHECKING:
    from dendrite import Session
    from dendrite.search import SearchResult

_ROWS_AT_ONCE = 256  # distributions in memory, of another temperature


@dataclass(frozen=True)
class Row:
    """One branch, from the prompt's first token to its last."""

    nodes: NDArray[np.int32]
    """[length] of the tree's nodes."""
    ids: NDArray[np.int32]
    """[length] its tokens."""
    logprob: NDArray[np.float32]
    """[length] as `Tree.logprob`."""
    generated: NDArray[np.bool_]
    """[length] as `Tree.generated`."""
    value: NDArray[np.float64]
    """[length] as `Tree.value`."""


@dataclass(frozen=True)
class Targets:
    """What is predicted where: one entry a token that has a token before it. A position that
    branches has several.

    The loss over rows, the sum of f over each row's tokens, is the sum of ``weight * f``.
    """

    source: NDArray[np.int32]
    """[m] nodes whose logits predict."""
    target: NDArray[np.int32]
    """[m] nodes that are predicted."""
    ids: NDArray[np.int32]
    """[m] their tokens."""
    weight: NDArray[np.int32]
    """[m] rows that pass through the target."""


@dataclass(frozen=True)
class Tree:
    """Branches as one tree of tokens, in depth-first order; siblings are in no promised order.

    n tokens, of which shared ones are there once; m branches.
    """

    ids: NDArray[np.int32]
    """[n] tokens."""
    positions: NDArray[np.int32]
    """[n] 0 for a prompt's first token."""
    parent: NDArray[np.int32]
    """[n] the node before it; -1: none."""
    tin: NDArray[np.int32]
    """[n] its place in depth-first order, which is its index here."""
    tout: NDArray[np.int32]
    """[n] the place after its last descendant."""
    logprob: NDArray[np.float32]
    """[n] natural log of its probability after the tokens before it; NaN where it was not asked
    for: in the part of the prompt that all branches share."""
    generated: NDArray[np.bool_]
    """[n] whether the model drew it, in any of its branches."""
    value: NDArray[np.float64]
    """[n] what it is worth, see `tree`; NaN: unknown."""
    leaves: NDArray[np.int32]
    """[m] the node that each branch ends with, in the given order."""

    def __len__(self) -> int:
        return len(self.ids)

    def mask(self) -> NDArray[np.bool_]:
        """[n, n]: whether q (the row) sees k (the column): itself and what is before it on its
        own path. 1 byte a pair: for short trees; kernels that know tin and tout need none."""
        tin, tout = self.tin, self.tout
        return (tin[None, :] <= tin[:, None]) & (tin[:, None] < tout[None, :])

    def rows(self) -> list[Row]:
        """The branches, in the given order: what a trainer without trees takes."""
        rows = []
        for leaf in self.leaves:
            nodes = np.empty(self.positions[leaf] + 1, np.int32)
            node = int(leaf)
            for at in range(len(nodes) - 1, -1, -1):
                nodes[at] = node
                node = int(self.parent[node])
            rows.append(
                Row(
                    nodes,
                    self.ids[nodes],
                    self.logprob[nodes],
                    self.generated[nodes],
                    self.value[nodes],
                )
            )
        return rows

    def targets(self) -> Targets:
        """The next tokens of all positions, in the order of the tokens."""
        ends = np.zeros(len(self) + 1, np.int32)
        np.add.at(ends, self.leaves + 1, 1)
        before = np.cumsum(ends, dtype=np.int32)  # branches that end before a place
        target = np.flatnonzero(self.parent >= 0).astype(np.int32)
        weight = before[self.tout[target]] - before[self.tin[target]]
        return Targets(self.parent[target], target, self.ids[target], weight)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes all arrays by their names, for ``numpy.load``; `path` ends with .npz."""
        arrays: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        np.savez(path, **arrays)


def tree(
    what: SearchResult | Sequence[Branch],
    *,
    values: Sequence[float] | None = None,
    given: Sequence[Iterable[tuple[int, int]]] | None = None,
    temperature: float = 1.0,
    session: Session | None = None,
) -> Tree:
    """The tree of a search's branches (its own and `others`), or of these.

    All begin with the same token; none of them changes. Equal beginnings are one, whoever
    computed them. Log-probs are of the raw distribution, by one pass of ``score``, and its bits;
    of another `temperature` they are read from distributions, a row each, of `session`.

    `value`: of a search result, what the thought that a token belongs to was judged. Of branches
    with `values`, one each: the mean over the branches that pass through the token.
    `given`: of each branch the ranges [begin, end) of tokens after its prompt that were appended
    and not drawn (a tool's answer), which `generated` leaves out.

    Raises Error where there is no branch, where they share no token, and where budget or pages
    forbade the log-probs.
    """
    branches = _branches_of(what)
    if not branches:
        raise Error("export.tree: got no branch; expected one at least")
    for name, extra in (("values", values), ("given", given)):
        if extra is not None and len(extra) != len(branches):
            raise Error(
                f"export.tree: got {len(extra)} {name}; expected {len(branches)}, one a branch"
            )
    shape = _Shape([branch.tokens for branch in branches])
    shared = min(shape.shared, min(branch.prompt_length for branch in branches))
    if shared == 0:
        raise Error(
            "export.tree: the branches begin with different tokens; expected branches of one "
            "prompt. Make a tree of each prompt"
        )
    generated = np.zeros(len(shape.ids), np.bool_)
    for i, (branch, path) in enumerate(zip(branches, shape.paths, strict=True)):
        drawn = np.arange(len(path)) >= branch.prompt_length
        for begin, end in given[i] if given is not None else ():
            drawn[begin:end] = False
        generated[path[drawn]] = True
    if temperature == 1:
        logprob = _scored(shape, branches[0], shared)
    else:
        logprob = _at_temperature(shape, branches, shared, temperature, session)
    return Tree(
        ids=shape.ids,
        positions=shape.positions,
        parent=shape.parent,
        tin=np.arange(len(shape.ids), dtype=np.int32),
        tout=shape.tout,
        logprob=logprob,
        generated=generated,
        value=_mean_values(shape, values) if values is not None else _thought_values(shape, what),
        leaves=np.array([path[-1] for path in shape.paths], np.int32),
    )


class _Shape:
    """Sequences as a trie. In lexicographic order each one shares with the trie so far what it
    shares with its predecessor, and the nodes that it adds follow in depth-first order."""

    def __init__(self, sequences: Sequence[NDArray[np.int32]]) -> None:
        keys = [sequence.astype(">i4").tobytes() for sequence in sequences]
        order = sorted(range(len(sequences)), key=keys.__getitem__)
        ids: list[NDArray[np.int32]] = []
        parents: list[NDArray[np.int32]] = []
        positions: list[NDArray[np.int32]] = []
        tout: NDArray[np.int32] = np.zeros(sum(map(len, sequences)), np.int32)
        self.paths: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * len(sequences)
        self.shared = len(sequences[order[0]])  # tokens that all of them begin with
        nodes = 0
        last: NDArray[np.int32] = np.empty(0, np.int32)
        path: NDArray[np.int32] = np.empty(0, np.int32)
        for place, index in enumerate(order):
            sequence = sequences[index]
            common = _common(last, sequence)
            if place > 0:
                self.shared = min(self.shared, common)
            tout[path[common:]] = nodes  # their last descendant was the one before
            new = np.arange(nodes, nodes + len(sequence) - common, dtype=np.int32)
            path = np.concatenate([path[:common], new])
            ids.append(sequence[common:])
            parents.append(np.concatenate([[-1], path[:-1]])[common:].astype(np.int32))
            positions.append(np.arange(common, len(sequence), dtype=np.int32))
            nodes += len(new)
            last = sequence
            self.paths[index] = path
        tout[path] = nodes
        self.ids = np.concatenate(ids).astype(np.int32)
        self.parent = np.concatenate(parents)
        self.positions = np.concatenate(positions)
        self.tout = tout[:nodes]


def _common(a: NDArray[np.int32], b: NDArray[np.int32]) -> int:
    """Tokens that both begin with."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def _branches_of(what: SearchResult | Sequence[Branch]) -> list[Branch]:
    if isinstance(what, Sequence):
        return list(what)
    found = [what.branch, *(thought.branch for thought in what.others)]
    return [branch for branch in found if branch]


def _scored(shape: _Shape, branch: Branch, shared: int) -> NDArray[np.float32]:
    logprob = np.full(len(shape.ids), np.nan, np.float32)
    paths = [path[shared:] for path in shape.paths if len(path) > shared]
    if not paths:
        return logprob
    with branch.at(shared, stream=branch.stream) as root:
        scores = root.score([shape.ids[path] for path in paths])
    for path, score in zip(paths, scores, strict=True):
        if len(score.tokens) != len(path):
            raise _not_computed(len(path))
        logprob[path] = score.tokens
    return logprob


def _at_temperature(
    shape: _Shape,
    branches: Sequence[Branch],
    shared: int,
    temperature: float,
    session: Session | None,
) -> NDArray[np.float32]:
    if not temperature > 0 or session is None:
        raise Error(
            f"export.tree: temperature is {temperature} and session is {session}; expected a "
            "temperature above 0 and the branches' session"
        )
    logprob = np.full(len(shape.ids), np.nan, np.float32)
    children: dict[int, list[int]] = {}  # of the nodes whose distribution is wanted
    where: dict[int, tuple[Branch, int]] = {}  # a branch that passes through, and the length there
    for branch, path in zip(branches, shape.paths, strict=True):
        for length in range(shared, len(path)):
            source, target = int(path[length - 1]), int(path[length])
            where.setdefault(source, (branch, length))
            if target not in children.setdefault(source, []):
                children[source].append(target)
    sources = list(where)
    for first in range(0, len(sources), _ROWS_AT_ONCE):
        some = sources[first : first + _ROWS_AT_ONCE]
        tips = [where[node][0].at(where[node][1], stream=where[node][0].stream) for node in some]
        rows = session.distributions(tips).astype(np.float64) / temperature
        session.prune(tips)
        if np.isnan(rows).any():
            raise _not_computed(len(some))
        rows -= rows.max(axis=1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
        for node, row in zip(some, rows, strict=True):
            logprob[children[node]] = row[shape.ids[children[node]]]
    return logprob


def _not_computed(tokens: int) -> Error:
    return Error(
        f"export.tree: log-probs of {tokens} tokens could not be computed; expected budget and KV "
        "pages for the tree (Session.shortage tells of pages)"
    )


def _mean_values(shape: _Shape, values: Sequence[float]) -> NDArray[np.float64]:
    total = np.zeros(len(shape.ids))
    count = np.zeros(len(shape.ids))
    for path, value in zip(shape.paths, values, strict=True):
        total[path] += value
        count[path] += 1
    return total / count


def _thought_values(shape: _Shape, what: SearchResult | Sequence[Branch]) -> NDArray[np.float64]:
    """Each thought ends where the next begins, and a branch ends with its last."""
    value = np.full(len(shape.ids), np.nan)
    if isinstance(what, Sequence):
        return value
    records = {record.node: record for record in what.tree}
    last = [what.path[-1].node if what.path else None] if what.branch else []
    last += [thought.node for thought in what.others if thought.branch]
    for path, node in zip(shape.paths, last, strict=True):
        end = len(path)
        while node in records and end > 0:
            record = records[node]
            value[path[max(0, end - record.tokens) : end]] = record.value
            end -= record.tokens
            node = record.parent
    return value


document(__name__)
