"""Points of the tree that do not move."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dendrite import _doors
from dendrite._core import Branch, Composition


class Node:
    """An immutable point of the token tree: a branch that nobody decodes.

    Search frameworks keep states in sets and dictionaries and deep-copy them, hundreds of times a
    search. A Node is hashable, its copies are itself, and `fork` goes on from it.
    """

    __slots__ = ("_branch", "__weakref__")

    def __init__(self, branch: Branch) -> None:
        """Where `branch` is now; that may go on."""
        if not isinstance(branch, Branch):
            raise _doors.wrong("branch", branch, "a Branch")
        self._branch = branch.fork()

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [length], prompt included."""
        return self._branch.tokens

    @property
    def text(self) -> str:
        """The text of all tokens after the prompt, without special tokens."""
        return self._branch.text

    @property
    def logprob(self) -> float:
        """The sum over the tokens that decode, expand or select chose."""
        return self._branch.logprob

    @property
    def prompt_length(self) -> int:
        """Tokens that prefill was given."""
        return self._branch.prompt_length

    @property
    def composition(self) -> Composition:
        """What it is composed of."""
        return self._branch.composition

    @overload
    def fork(self) -> Branch: ...
    @overload
    def fork(self, count: int) -> list[Branch]: ...
    def fork(self, count: int | None = None) -> Branch | list[Branch]:
        """A branch that goes on from here; with a count, a list of so many."""
        return self._branch.fork() if count is None else self._branch.fork(count)

    def at(self, length: int) -> Branch:
        """A branch from the past: the first `length` tokens."""
        return self._branch.at(length)

    def __len__(self) -> int:
        return len(self._branch)

    def __bool__(self) -> bool:
        """Whether its session is open."""
        return bool(self._branch)

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Node:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Node cannot be pickled: it is a place in its engine's memory. "
            "session.snapshot([node.fork()]) makes bytes that Engine.restore takes back"
        )

    def __repr__(self) -> str:
        return repr(self._branch).replace("<Branch", "<Node", 1)
