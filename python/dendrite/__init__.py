"""Dendrite: inference for programs that search with a language model.

One token tree holds all branches; forking one costs nanoseconds, all of them decode in one batch
that reads each shared page once, and a forked branch gives exactly what a replay would.

    from dendrite import Engine

    engine = Engine("path/to/model")
    with engine.session(seed=7) as session:
        root = session.prefill("...")
        for out in session.decode(root.fork(8), max_tokens=32, temperature=1.0):
            print(out.text)

The same words as in C++: Engine, Session, Branch, DecodeParams; strategies are in dendrite.search.
"""

from __future__ import annotations

import atexit
import os

from dendrite import _core
from dendrite._aio import AsyncSession
from dendrite._aio_stream import AsyncStream
from dendrite._call_grammar import ToolChoice
from dendrite._compose import Composed, Edit, Piece, Repair
from dendrite._constraint import Choice, Constraint, JsonObject, JsonSchema, Lark, Regex
from dendrite._core import (
    Branch,
    BranchBusy,
    BranchEmpty,
    BranchStats,
    Cancel,
    ChosenToken,
    Chunk,
    ChunkInfo,
    Compatibility,
    Composition,
    ConstraintError,
    Distribution,
    EngineClosed,
    EngineInfo,
    EngineStats,
    Error,
    Estimate,
    Finish,
    Generation,
    KvShortage,
    Perplexity,
    Quantized,
    Score,
    Stats,
    TokenEvent,
    TokenLogprob,
)
from dendrite._documented import document_members
from dendrite._engine import Engine, Restored, close_all
from dendrite._events import EventStream, Subscription
from dendrite._ledger import Effect, Ledger
from dendrite._measures import TextSample, quantize, top1_agreement
from dendrite._node import Node
from dendrite._params import Budget, DecodeParams
from dendrite._reply import ChatReply
from dendrite._session import Session, Strategy
from dendrite._types import Message, Prompt, RenderedPrompt, Tokens
from dendrite.search import (
    BeamSearch,
    BestFirst,
    BestOfN,
    Candidate,
    Critique,
    DepthFirst,
    ForkJoin,
    Judgement,
    Mcts,
    Proposals,
    Rule,
    SearchEvent,
    SearchResult,
    SelfConsistency,
    SelfRefinement,
    Steps,
    Thought,
    ThoughtRecord,
    TreeOfThoughts,
    Vote,
    expand_until,
)
from dendrite.tools import ToolCall, ToolCallParser

__all__ = [
    "AsyncSession",
    "AsyncStream",
    "BeamSearch",
    "BestFirst",
    "BestOfN",
    "Branch",
    "BranchBusy",
    "BranchEmpty",
    "BranchStats",
    "Budget",
    "Cancel",
    "Candidate",
    "Choice",
    "ChatReply",
    "ChosenToken",
    "Chunk",
    "ChunkInfo",
    "Compatibility",
    "Composed",
    "Composition",
    "Constraint",
    "ConstraintError",
    "Critique",
    "DecodeParams",
    "DepthFirst",
    "Distribution",
    "Edit",
    "Effect",
    "Engine",
    "EngineClosed",
    "EngineInfo",
    "EngineStats",
    "Error",
    "Estimate",
    "EventStream",
    "Finish",
    "ForkJoin",
    "Generation",
    "JsonObject",
    "JsonSchema",
    "Judgement",
    "KvShortage",
    "Lark",
    "Ledger",
    "Mcts",
    "Message",
    "Node",
    "Perplexity",
    "Piece",
    "Prompt",
    "Proposals",
    "Quantized",
    "Regex",
    "RenderedPrompt",
    "Repair",
    "Restored",
    "Rule",
    "Score",
    "SearchEvent",
    "SearchResult",
    "SelfConsistency",
    "SelfRefinement",
    "Session",
    "Stats",
    "Steps",
    "Strategy",
    "Subscription",
    "TextSample",
    "Thought",
    "ThoughtRecord",
    "TokenEvent",
    "TokenLogprob",
    "Tokens",
    "ToolCall",
    "ToolCallParser",
    "ToolChoice",
    "TreeOfThoughts",
    "Vote",
    "expand_until",
    "quantize",
    "top1_agreement",
]

__version__: str = _core.build_id().split()[1]
"""As of the C++ library: "0.1.0"."""

for _error in (Error, BranchEmpty, BranchBusy, ConstraintError, EngineClosed):
    _error.__module__ = "dendrite"
Error.__doc__ = "What the caller cannot mend where it happens; it says what was got and expected."
BranchEmpty.__doc__ = "Use of a branch that was pruned, or closed with its session."
BranchBusy.__doc__ = "Use of a branch that a call computes on, which would change it."
ConstraintError.__doc__ = "A constraint that cannot be compiled, with the reason."
EngineClosed.__doc__ = (
    "Use of an engine or a session that was closed, or is a forked process's parent's."
)
for _kind in (Finish, Rule):
    document_members(_kind)

atexit.register(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_core.note_fork)
