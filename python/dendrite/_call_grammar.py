"""What an answer with tools must be: grammars of calls as the model's family writes them, which C++
makes (dendrite/tool_grammar.h)."""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dendrite import _core
from dendrite._constraint import Constraint, JsonSchema
from dendrite.tools import function_of

if TYPE_CHECKING:
    from dendrite._engine import Engine

_COMPOSED = {"$ref", "allOf", "anyOf", "oneOf"}  # where others say more of the same object

Function: TypeAlias = Mapping[str, Any]


class ToolChoice(NamedTuple):
    """Whether an answer must call a tool, and whether it may call more than one."""

    required: bool = False
    """It has to call one."""
    parallel: bool = True
    """It may call several."""


class CallGrammar:
    """The grammars of one model's answers. Safe to use from several threads."""

    def __init__(self, engine: Engine) -> None:
        self._handle = engine._handle

    def constraint(
        self, tools: Sequence[Function], choice: ToolChoice, answer: JsonSchema | None = None
    ) -> Constraint | None:
        """What an answer must be; with `answer`, calls or JSON of this schema.

        Where a call is required, an answer is calls and nothing else. Where it is not ("auto"), it
        is free text, in which a call that has begun is held to the name of a known tool and to its
        schema.

        A tool whose schema cannot be compiled is named, with the reason, in a UserWarning, and
        takes no other with it: where an answer may be free text it may be called with any
        arguments, and where it must be a call it is left out. Raises ConstraintError where no tool
        is left then. With a model that cannot be constrained at all an answer that may be free
        text has no constraint: None.
        """
        functions = json.dumps([function_of(tool) for tool in tools], ensure_ascii=False)
        made, told = self._handle.tool_grammar(functions, choice.required, choice.parallel, answer)
        for line in told:
            warnings.warn(line, UserWarning, stacklevel=2)
        return made

    def final_answer(self, answer: JsonSchema) -> Constraint:
        """Of a model that writes Harmony: thoughts, or none, and JSON of this schema."""
        return self._handle.final_answer(answer)


@functools.lru_cache(maxsize=8)
def added_tokens(model_path: str) -> Mapping[str, int]:
    """The tokens that are no text to a grammar, which has to name them: special ones and tags."""
    text = _core.model_text(model_path, "tokenizer.json")
    added = json.loads(text or "{}").get("added_tokens") or []
    tags = re.compile(r"<.*>", re.DOTALL)
    return {
        t["content"]: t["id"] for t in added if t.get("special") or tags.fullmatch(t["content"])
    }


def closed(schema: Any) -> Any:
    """A schema whose objects have no properties beside those that are listed, unless it says so
    itself: what it means to those who write it as a class or as a function's parameters."""
    if not isinstance(schema, Mapping):
        return schema
    made = dict(schema)
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            made[key] = {name: closed(part) for name, part in value.items()}
        elif key in ("items", "additionalProperties"):
            made[key] = closed(value)
        elif key in ("anyOf", "oneOf", "prefixItems") and "properties" not in schema:
            made[key] = [closed(part) for part in value]
    if "properties" in made and not _COMPOSED & made.keys():
        made.setdefault("additionalProperties", False)
    return made
