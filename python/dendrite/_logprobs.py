"""Log-probs of an answer in OpenAI's form, for adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dendrite._core import Generation

if TYPE_CHECKING:
    from dendrite._engine import Engine


def openai_logprobs(engine: Engine, before: int, generation: Generation) -> dict[str, Any] | None:
    """{"content": [...]} of all generated tokens, the end token included; None where no log-probs
    were asked for.

    before: the token in front of the first, which says how that reads.
    """
    if not generation.logprobs:
        return None
    content = []
    for chosen in generation.logprobs:
        top = [_token(engine, before, one.id, one.logprob) for one in chosen.top]
        content.append({**_token(engine, before, chosen.id, chosen.logprob), "top_logprobs": top})
        before = chosen.id
    return {"content": content}


def _token(engine: Engine, before: int, token: int, logprob: float) -> dict[str, Any]:
    """A token as it reads behind another; `bytes` is None of a part of a character."""
    front, both = engine.decode([before]), engine.decode([before, token])
    text = both[len(front) :] if both.startswith(front) else engine.decode([token])
    whole = "\N{REPLACEMENT CHARACTER}" not in text
    return {"token": text, "bytes": list(text.encode()) if whole else None, "logprob": logprob}
