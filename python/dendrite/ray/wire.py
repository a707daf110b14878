"""What travels between the pool and its workers: calls, replies, and values in plain form."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import dendrite
from dendrite import Branch, Constraint, Finish
from dendrite.search import SearchResult, Thought


@dataclass(frozen=True)
class Ref:
    """A branch of a worker's session, by its id."""

    id: int


@dataclass(frozen=True)
class TokenLogprob:
    """As dendrite.TokenLogprob."""

    id: int
    logprob: float


@dataclass(frozen=True)
class ChosenToken:
    """As dendrite.ChosenToken."""

    id: int
    logprob: float
    top: list[TokenLogprob]


@dataclass(frozen=True)
class Generation:
    """As dendrite.Generation: what one branch generated in one decode call."""

    ids: list[int]
    text: str
    finish: Finish
    logprobs: list[ChosenToken]
    stop: str = ""
    stop_token: int | None = None


@dataclass(frozen=True)
class Score:
    """As dendrite.Score: log-probabilities of one continuation."""

    logprob: float
    tokens: list[float]
    greedy: bool
    top: list[list[TokenLogprob]] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class Held:
    """A search's record with its branches as Refs beside it: pickled, a record loses its own."""

    record: SearchResult | Thought
    branch: Ref | None
    others: tuple[Held, ...] = ()


@dataclass(frozen=True)
class Call:
    """A call of a session's method, or of a branch's (`on`), with branches as Refs."""

    method: str
    on: int | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    drops: tuple[int, ...] = ()  #: branches whose handles are gone: pruned before it

    def is_data(self) -> bool:
        """Whether it can be repeated: functions may do anything, and not twice."""
        return _is_data(self.args) and _is_data(self.kwargs)

    def computes(self) -> bool:
        """Whether repeating it takes long."""
        return self.method not in ("fork", "at", "append", "constrain", "prune")


@dataclass(frozen=True)
class Reply:
    """What came of a call: a value in plain form, or what it raised."""

    value: Any = None
    error: Exception | None = None

    def same(self, other: Reply) -> bool:
        """Whether a replay gave what was delivered. (By text: a NaN is as good as another.)"""
        return repr(self) == repr(other)


@dataclass(frozen=True)
class Birth:
    """How a session that has no snapshot yet begins."""

    seed: int
    budget: dendrite.Budget | None


_SCALARS = (
    *(type(None), bool, int, float, str, bytes, Finish, Constraint, Ref),
    *(np.ndarray, np.generic),
)


def _is_data(value: Any) -> bool:
    if isinstance(value, _SCALARS):
        return True
    if isinstance(value, Mapping):
        return all(_is_data(item) for item in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return all(_is_data(item) for item in value)
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith("dendrite"):
        return all(_is_data(getattr(value, field.name)) for field in dataclasses.fields(value))
    return False


def convert(value: Any, one: Callable[[Any], Any]) -> Any:
    """`value` with `one` applied to everything in it that is no container; equal types."""
    if isinstance(value, list):
        return [convert(item, one) for item in value]
    if type(value) is tuple:
        return tuple(convert(item, one) for item in value)
    if isinstance(value, dict):
        return {key: convert(item, one) for key, item in value.items()}
    return one(value)


def pack(value: Any, refer: Callable[[Branch], Ref]) -> Any:
    """A worker's value in plain form."""

    def one(item: Any) -> Any:
        if isinstance(item, Branch):
            return refer(item)
        if isinstance(item, dendrite.Generation):
            chosen = [_chosen(token) for token in item.logprobs]
            return Generation(
                list(item.ids), item.text, item.finish, chosen, item.stop, item.stop_token
            )
        if isinstance(item, dendrite.Score):
            top = [_likeliest(place) for place in item.top]
            return Score(item.logprob, list(item.tokens), item.greedy, top)
        if isinstance(item, SearchResult):
            record = dataclasses.replace(item, branch=None, others=[])
            return Held(record, pack(item.branch, refer), tuple(pack(item.others, refer)))
        if isinstance(item, Thought):
            return Held(dataclasses.replace(item, branch=None), pack(item.branch, refer))
        return item

    return convert(value, one)


def unpack(value: Any, of: Callable[[Ref], Any]) -> Any:
    """A plain value with what `of` makes of its Refs."""

    def one(item: Any) -> Any:
        if isinstance(item, Ref):
            return of(item)
        if not isinstance(item, Held):
            return item
        branch = unpack(item.branch, of)
        if isinstance(item.record, SearchResult):
            others = unpack(list(item.others), of)
            return dataclasses.replace(item.record, branch=branch, others=others)
        return dataclasses.replace(item.record, branch=branch)

    return convert(value, one)


def _chosen(token: dendrite.ChosenToken) -> ChosenToken:
    return ChosenToken(token.id, token.logprob, _likeliest(token.top))


def _likeliest(top: Sequence[dendrite.TokenLogprob]) -> list[TokenLogprob]:
    return [TokenLogprob(other.id, other.logprob) for other in top]
