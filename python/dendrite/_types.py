"""Names for what callers pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = Sequence[int] | NDArray[np.int32]
"""Token ids: a sequence of ints, or an int32 array."""

Prompt: TypeAlias = str | Tokens
"""A text, which the model's tokenizer encodes, or token ids."""

Message: TypeAlias = Mapping[str, Any]
"""A message of a chat, in OpenAI's form: "role" and "content", perhaps "tool_calls"."""
