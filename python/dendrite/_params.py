"""How to decode, and what a session may spend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

from dendrite import _core, _doors
from dendrite._constraint import Constraint
from dendrite._documented import document

Speculate = Literal[
    "off", "suffix", "draft_model", "dflash", "dflash_ddtree", "suffix_dflash", "mtp", "suffix_mtp"
]


OnLogits = Callable[[NDArray[np.float32], list[int], list[list[int]]], object]


class DecodeFields(TypedDict, total=False):
    """The fields of DecodeParams, for calls that take them as keywords."""

    max_tokens: int
    stop: Sequence[str]
    stop_tokens: Sequence[int]
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    min_tokens: int | None
    bad_words: Sequence[str | Sequence[int]]
    seed: int | None
    on_logits: OnLogits | None
    logit_bias: Mapping[int, float] | None
    constraint: Constraint | None
    ignore_eos: bool
    logprobs: bool
    top_logprobs: int
    slack: float
    speculate: Speculate
    speculate_budget: int
    speculate_tokens: int
    speculate_top_k: int
    speculate_temperature: float
    speculate_chain_seed: bool | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeParams:
    """How to decode.

    What is None comes from the model's generation_config.json, else from the neutral value:
    temperature 0 (greedy) unless it says do_sample; no filters; no penalty. Order of application:
    constraint, on_logits, logit_bias, repetition_penalty, presence_penalty and frequency_penalty,
    what min_tokens and bad_words forbid, temperature, top_k, top_p, min_p. Values out of range
    raise Error in the call that they are given to.

    >>> DecodeParams(max_tokens=8).replace(stop=["."]).stop
    ('.',)
    """

    max_tokens: int = 256
    """New tokens a branch in this call."""
    stop: Sequence[str] = ()
    """Ends a branch when its new text holds one of these."""
    stop_tokens: Sequence[int] = ()
    """Ends a branch when it draws one of these."""
    temperature: float | None = None
    """>= 0; 0 takes the likeliest token (of equal ones the lowest id)."""
    top_k: int | None = None
    """>= 0; 0 keeps all."""
    top_p: float | None = None
    """In (0, 1]."""
    min_p: float | None = None
    """In [0, 1]: keeps p >= min_p * largest p."""
    repetition_penalty: float | None = None
    """> 0; over prompt and generated tokens."""
    presence_penalty: float | None = None
    """Taken from the logit of each token that the branch has behind its prompt. Tokens of earlier
    calls and appended ones count, and a fork's are those of its whole path."""
    frequency_penalty: float | None = None
    """The same, as many times as the branch has the token. Usually -2 to 2."""
    min_tokens: int | None = None
    """Before so many new tokens in this call no end-of-sequence or stop token is drawn, and stop
    texts end nothing. A constraint wins: a text that can only end, ends."""
    bad_words: Sequence[str | Sequence[int]] = ()
    """Texts or sequences of tokens that are never completed. Texts are forbidden as the tokens that
    they are encoded to inside a text, behind a space, and at a beginning. Where nothing else can
    follow, a branch ends with Finish.DEAD_END."""
    seed: int | None = None
    """Draws by this seed rather than the session's: with the same `stream` of prefill the same
    tokens in any session."""
    on_logits: OnLogits | None = dataclasses.field(default=None, hash=False)
    """Called once a step before tokens are drawn: on_logits(logits, indices, ids), with the raw
    logits, float32 [branches, vocab], which it may write; the branches' places in the call; and
    what each has generated so far. It runs in the thread that drives the engine, everything else
    waits for it, and it must not call the engine. Its price: logits come to the host, and no step
    begins before the tokens of the last are known. What it raises ends the call and comes out."""
    logit_bias: Mapping[int, float] | None = dataclasses.field(default=None, hash=False)
    """Added to the logits of these tokens; one with -inf is never drawn."""
    constraint: Constraint | None = None
    """What the new text must be, in this call alone: for several calls, and for branches that fork
    inside, there is Branch.constrain. A branch ends with Finish.STOP as soon as its text can only
    end, or draws an end-of-sequence token where it may; a stop string or token before that is
    Finish.STOP_INSIDE. Tokens that it leaves no choice about take
    no step of their own, unless log-probs are asked for."""
    ignore_eos: bool = False
    """Goes on after an end-of-sequence token, and the stop strings of generation_config.json; not
    past a constraint's end."""
    logprobs: bool = False
    """Log-probs of the chosen tokens: Generation.logprobs."""
    top_logprobs: int = -1
    """n >= 0: those, and in each the n likeliest tokens (ChosenToken.top); -1: as logprobs says."""
    slack: float = 1.05
    """>= 1. Where others are decoded ahead, a step may take so many times as long."""
    speculate: Speculate = "off"
    """Drafts tokens that may come next: suffix from what followed in the session where its texts
    ended alike, draft_model with the model that the engine was given for that, dflash and
    dflash_ddtree with its block drafter: the likeliest chain, or a tree of what is likely;
    suffix_dflash, for each branch, as suffix or dflash_ddtree does, whichever promises more; mtp
    and suffix_mtp the same with the model's own MTP head (Engine's drafter "mtp"). The text is that
    without it, to the bit, at any temperature, in fewer steps where drafts come true; callbacks
    hear of the tokens of one step together."""
    speculate_budget: int = 16
    """Drafted tokens a branch and step, at most; >= 0."""
    speculate_tokens: int = 0
    """Of them one after the other, at most; 0: as many as the method proposes. With dflash_ddtree
    no more than speculate_budget."""
    speculate_top_k: int = 8
    """dflash_ddtree: tokens that are looked at for each place; >= 1."""
    speculate_temperature: float = 1.0
    """dflash_ddtree: > 0; divides the drafter's logits, for the tree's shape alone."""
    speculate_chain_seed: bool | None = None
    """dflash_ddtree: the likeliest chain goes into the tree first. None: as needed."""

    def __post_init__(self) -> None:
        expectations = (
            ("stop", "a sequence of str"),
            ("stop_tokens", "token ids"),
            ("bad_words", "a sequence of str and token ids"),
        )
        for name, expected in expectations:
            value = _doors.items(name, getattr(self, name), expected)
            object.__setattr__(self, name, tuple(value))
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, Mapping):
                expected = "a mapping of token ids to numbers"
                raise _doors.wrong("logit_bias", self.logit_bias, expected)
            object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        fields = {field.name: getattr(self, field.name) for field in _FIELDS}
        object.__setattr__(self, "_native", _core.Params(**_with_logprobs(fields)))

    def replace(self, **changes: Any) -> DecodeParams:
        """The same with other values for these fields."""
        return dataclasses.replace(self, **changes)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in _FIELDS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
        self.__post_init__()


_FIELDS = dataclasses.fields(DecodeParams)
_DEFAULT = _core.Params()


def _with_logprobs(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """With top_logprobs for logprobs, which C++ has no other word for."""
    if "logprobs" not in fields:
        return fields
    rest = dict(fields)
    wanted = rest.pop("logprobs")
    if not isinstance(wanted, bool):
        expected = "True or False (top_logprobs=n: of the n likeliest)"
        raise _doors.wrong("logprobs", wanted, expected)
    if wanted and rest.get("top_logprobs", -1) < 0:
        rest["top_logprobs"] = 0
    return rest


def native(params: DecodeParams | None, fields: Mapping[str, Any]) -> _core.Params:
    """What C++ takes, of parameters and of keywords that replace some of them."""
    if params is None:
        return _core.Params(**_with_logprobs(fields)) if fields else _DEFAULT
    if not isinstance(params, DecodeParams):
        raise _doors.wrong("params", params, "a DecodeParams")
    if fields:
        params = params.replace(**fields)
    made: _core.Params = params._native  # type: ignore[attr-defined]
    return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """What a session may spend; running out ends calls with Finish.BUDGET and disturbs nobody."""

    tokens: int = 0
    """Rows computed; 0: no limit."""
    milliseconds: float = 0
    """Spent inside calls; 0: no limit."""


document(__name__)
