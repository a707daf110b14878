"""What searches tell and take: plain data. People import it from dendrite.search."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from dendrite._core import Branch, Composition, Finish
from dendrite._documented import document

EventKind: TypeAlias = Literal["proposed", "judged", "visited", "kept", "pruned", "solved"]
"""proposed: it exists. judged: its value is known. visited: MCTS changed value (the mean) and
visits. kept: the search goes on from it. pruned: the search is done with it. solved: it is a
solution."""


@dataclasses.dataclass(slots=True)
class ThoughtRecord:
    """A thought as the record of a search keeps it (its branch may be gone)."""

    node: int
    """Its number in the search: 0 is the prompt, the others count in the order of proposal."""
    parent: int
    """The node that it is a step from."""
    branch_id: int = 0
    """Branch.id; unlike `node` it depends on what else the session did."""
    depth: int = 0
    """1 for the first step."""
    text: str = ""
    """Of this step alone."""
    tokens: int = 0
    """Of this step."""
    logprob: float = 0.0
    """The sum over those of its tokens that the model chose."""
    value: float = 0.0
    """What judged it said; larger is better, NaN: could not be computed."""
    visits: int = 0
    """MCTS: values backed up through it."""
    kept: bool = False
    """The search went on from it, or ended with it."""
    joined: list[int] = dataclasses.field(default_factory=list)
    """The nodes that its branch was joined from, `parent` first (ForkJoin)."""

    def asdict(self) -> dict[str, Any]:
        """All fields, in their order, but a branch."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "branch"]
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(slots=True)
class Thought(ThoughtRecord):
    """One step of reasoning with the branch that ends with it."""

    branch: Branch | None = None
    """In a callable: lent until it returns."""

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        return None, {**self.asdict(), "branch": None}  # (a branch is a place in memory)


@dataclasses.dataclass(slots=True)
class SearchEvent:
    """What a search tells while it runs, in an order that depends on no thread or batch."""

    kind: EventKind
    """What happened."""
    thought: ThoughtRecord
    """To whom; a copy."""


@dataclasses.dataclass(slots=True)
class Vote:
    """How often an answer was given (SelfConsistency)."""

    answer: str
    """What samples voted for."""
    count: int
    """How many."""


@dataclasses.dataclass(slots=True)
class Candidate:
    """A thought as plain data, for `evaluate` in other threads and processes."""

    node: int
    """ThoughtRecord.node."""
    depth: int
    """1 for the first step."""
    text: str
    """Of the step."""
    history: str
    """All text after the prompt, the step's included."""
    logprob: float
    """Of the step."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Critique:
    """What a critic says of a draft."""

    value: float = 0.0
    """Larger is better."""
    good: bool = False
    """A solution: it ends the search."""
    feedback: str = ""
    """Appended before the draft is revised; may be empty."""
    keep: int = 0
    """Tokens, prompt included, that the revision keeps: it is a fork from there. 0: all."""


@dataclasses.dataclass(slots=True)
class Proposals:
    """Children of a frontier: children[i] are steps from nodes[i]."""

    children: list[list[Branch]]
    """Lists as long as the frontier."""
    finish: Finish = Finish.RUNNING
    """BUDGET or CANCELLED: not all could be computed."""


@dataclasses.dataclass
class SearchResult:
    """What came of a search. A strategy of one's own returns one, too.

    All but its branches is plain data, which stays when the session is closed; pickled, it comes
    back without them.
    """

    solved: bool = False
    """Whether `branch` is a solution."""
    branch: Branch | None = None
    """The solution's; else the best that the strategy names, None if there is none."""
    path: list[ThoughtRecord] = dataclasses.field(default_factory=list)
    """From the first step to that branch's last."""
    tree: list[ThoughtRecord] = dataclasses.field(default_factory=list)
    """All thoughts, in the order of proposal."""
    others: list[Thought] = dataclasses.field(default_factory=list)
    """Finished as well, best first (beams, answers, drafts)."""
    votes: list[Vote] = dataclasses.field(default_factory=list)
    """Most votes first (SelfConsistency)."""
    finish: Finish = Finish.STOP
    """STOP: it ran to its end; BUDGET, CANCELLED: cut short."""
    joins: list[Composition] = dataclasses.field(default_factory=list)
    """In the order in which they were made (ForkJoin)."""
    text: str = ""
    """Of `branch`, all after the prompt."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "branch": None}

    def asdict(self) -> dict[str, Any]:
        """All fields but the branch, in their order; records in them as dictionaries, too."""
        return {
            "solved": self.solved,
            "path": [thought.asdict() for thought in self.path],
            "tree": [thought.asdict() for thought in self.tree],
            "others": [thought.asdict() for thought in self.others],
            "votes": [dataclasses.asdict(vote) for vote in self.votes],
            "finish": self.finish,
            "joins": [join.asdict() for join in self.joins],
            "text": self.text,
        }

    def rows(self) -> list[dict[str, Any]]:
        """The tree as one dictionary a thought, for pandas.DataFrame and the like.

        Keys: node, parent, depth, text, tokens, logprob, value, visits, kept.
        """
        names = ("node", "parent", "depth", "text", "tokens", "logprob", "value", "visits", "kept")
        return [{name: getattr(thought, name) for name in names} for thought in self.tree]

    def to_svg(self, max_nodes: int = 300) -> str:
        """The tree as an SVG image; of more thoughts than `max_nodes`, the rest are counts."""
        from dendrite import notebook

        return notebook.to_svg(self, max_nodes)

    def _repr_html_(self) -> str:
        from dendrite import notebook

        return notebook.to_html(self)

    def __repr__(self) -> str:
        path: Sequence[str] = [step.text[:40] for step in self.path[:8]]
        return (
            f"<SearchResult: {'solved' if self.solved else 'not solved'}, "
            f"{self.finish.name.lower()}, {len(self.tree)} thoughts, path {list(path)}>"
        )


document(__name__)
