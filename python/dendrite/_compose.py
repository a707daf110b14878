"""Context that is composed of pieces, some of which have K and V already."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from dendrite import _core, _doors
from dendrite._core import Branch, Cancel, Chunk, Composition
from dendrite._documented import document
from dendrite._types import Tokens

Mode: TypeAlias = Literal["composed", "exact"]
"""exact: nothing is moved, bit for bit what prefill of the same tokens gives."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repair:
    """Which tokens of a piece that is moved are computed instead, where they are now.

    >>> Repair(last=4)
    Repair(first=32, last=4, top=0.0)
    """

    first: int = 32
    """Of each piece, the first so many tokens: they hold what a piece has for its own beginning of
    text, which hurts most where it is in the middle of one."""
    last: int | None = None
    """The last so many: conclusions stand at ends. None: none; where text before the piece was
    replaced, 4."""
    top: float = 0.0
    """Of what is still moved then, so large a part more, 0 to 1: the groups of 16 tokens whose K
    and V of the second layer differ most from what they are here. To find them, all tokens go
    through two layers; the choice depends on the pieces alone."""


class BranchSpan(NamedTuple):
    """Positions [begin, end) of a branch."""

    branch: Branch
    """A live one of the session, which is not changed."""
    begin: int
    """The first."""
    end: int
    """Behind the last."""


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """Part of a composition; made by Piece.text, tokens, chunk or span.

    >>> Piece.text("The end.").repaired(first=0)
    Piece(content='The end.', repair=Repair(first=0, last=None, top=0.0))
    """

    content: str | Tokens | Chunk | BranchSpan
    """What it was made of."""
    repair: Repair | None = None
    """Of its own; None: that of the call."""

    @staticmethod
    def text(text: str) -> Piece:
        """A `text`: computed; encoded as what follows the pieces before it."""
        if not isinstance(text, str):
            raise _doors.wrong("text", text, "a str")
        return Piece(text)

    @staticmethod
    def tokens(ids: Tokens) -> Piece:
        """Token `ids`: computed."""
        if isinstance(ids, (str, bytes)):
            raise _doors.wrong("tokens", ids, "token ids")
        return Piece(ids)

    @staticmethod
    def chunk(chunk: Chunk) -> Piece:
        """A `chunk`: moved; or kept, where everything before it is what it was computed behind."""
        if not isinstance(chunk, Chunk):
            raise _doors.wrong("chunk", chunk, "a Chunk")
        return Piece(chunk)

    @staticmethod
    def span(branch: Branch, begin: int, end: int) -> Piece:
        """The same of positions [begin, end) of a live branch of the session.

        Its handle must be live in the call; the branch is not changed.
        """
        if not isinstance(branch, Branch):
            raise _doors.wrong("span", branch, "a Branch")
        return Piece(BranchSpan(branch, _position(begin), _position(end)))

    def repaired(
        self, *, first: int = Repair.first, last: int | None = None, top: float = Repair.top
    ) -> Piece:
        """The piece with a repair of its own: `first`, `last` and `top` are as in Repair."""
        return Piece(self.content, Repair(first=first, last=last, top=top))


class Composed(NamedTuple):
    """A branch that was composed, with what it is made of."""

    branch: Branch
    """Where pages or budget did not suffice, or the call was cancelled, its finish says so; its
    tokens are there."""
    report: Composition
    """As branch.composition; with the estimate and the note of the call."""


class Edit(NamedTuple):
    """One change of a context: positions [begin, end) are dropped, or replaced."""

    begin: int
    """The first that goes."""
    end: int
    """Behind the last; `begin`: none goes, and the pieces are inserted."""
    pieces: Sequence[Piece] = ()
    """What is there instead."""


AnyEdit: TypeAlias = Edit | tuple[int, int] | tuple[int, int, Sequence[Piece]]
"""An Edit, or a tuple of its fields."""


_EDITS = "a sequence of edits: (begin, end) or (begin, end, pieces)"


def native(
    repair: Repair | None,
    mode: Mode,
    target_kl: float,
    cancel: Cancel | None,
    exact_behind: bool = False,
) -> _core.ComposeParams:
    """What C++ takes."""
    if repair is not None and not isinstance(repair, Repair):
        raise _doors.wrong("repair", repair, "a Repair or None")
    return _core.ComposeParams(repair, mode, target_kl, cancel, exact_behind)


def native_edits(edits: Iterable[AnyEdit]) -> list[Edit]:
    """With all fields, and with ints for positions."""
    made = []
    for each in _doors.items("edits", edits, _EDITS):
        fields = _doors.items("edits", each, _EDITS)
        if not 2 <= len(fields) <= 3:
            raise TypeError(f"edits: got a tuple of {len(fields)}; expected {_EDITS}")
        edit = Edit(*fields)
        pieces = _doors.items("pieces", edit.pieces, "a sequence of pieces")
        made.append(Edit(_position(edit.begin), _position(edit.end), pieces))
    return made


def native_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """With ints for positions."""
    expected = "a sequence of (begin, end)"
    pairs = [_doors.items("keep", span, expected) for span in _doors.items("keep", spans, expected)]
    if any(len(pair) != 2 for pair in pairs):
        raise TypeError(f"keep: got spans of other lengths; expected {expected}")
    return [(_position(begin), _position(end)) for begin, end in pairs]


def _position(value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise _doors.wrong("position", value, "an int") from None


document(__name__)
