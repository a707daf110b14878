"""Names for what callers pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = Sequence[int] | NDArray[np.integer]
"""Token ids: a sequence of ints, or an array of them in one dimension."""

Prompt: TypeAlias = str | Tokens
"""A text, which the model's tokenizer encodes, or token ids."""

Message: TypeAlias = Mapping[str, Any]
"""A message of a chat, in OpenAI's form: "role" and "content", perhaps "tool_calls"."""


class RenderedPrompt(str):
    """A text that Engine.render_chat made: its template has put BOS and the like where they belong.

    So what encodes it (Engine.encode, Session.prefill, run_tree) adds none, unless it is told
    add_special=True. It is a str in all else; text that is added behind keeps it one, other changes
    make a plain str, which gets BOS as any text does.

    >>> type(RenderedPrompt("<s>Hi") + " there").__name__
    'RenderedPrompt'
    """

    __slots__ = ()

    is_rendered = True
    """For the module, which looks for it."""

    def __add__(self, behind: str) -> RenderedPrompt:
        return RenderedPrompt(super().__add__(behind))
