"""Tool calls in generated text, in the formats of the model families that Dendrite runs.

Three formats, told apart by what stands in the text:

- ``<tool_call>{"name": "f", "arguments": {...}}</tool_call>`` anywhere (Qwen, Hermes);
- ``<function=f><parameter=p>value</parameter></function>`` anywhere, in ``<tool_call>`` or bare
  (Qwen's coders): values become what the tool's JSON schema says they are;
- an answer that begins with JSON: ``{"name": "f", "arguments": {...}}``, also with
  ``"parameters"``, several separated by ``;`` or in an array (Llama, Mistral, ``dendrite-tools``).

A call must name a known tool and give an object of arguments. What does not is content: it comes
out as text, unchanged.
"""

from __future__ import annotations

import ast
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_END_OF = {"<tool_call>": "</tool_call>", "<function=": "</function>"}
_FUNCTION = re.compile(r"<function=([^>]*)>(.*?)(?:</function>|$)", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=([^>]*)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|$)", re.DOTALL
)
_JSON = json.JSONDecoder(strict=False)


def _new_id() -> str:
    return "call_" + uuid.uuid4().hex[:24]


@dataclass(frozen=True)
class ToolCall:
    """A call that a model asked for: the tool's name, its arguments, and an id of its own."""

    name: str
    """Of the tool."""
    arguments: dict[str, Any]
    """Of the call."""
    id: str = field(default_factory=_new_id, compare=False)
    """Of this call alone, for the message with its result."""

    def arguments_json(self) -> str:
        """The arguments as JSON text, as OpenAI's messages have them."""
        return json.dumps(self.arguments, ensure_ascii=False)


def function_of(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The ``{"name", "parameters"}`` of a tool in OpenAI's form, or of one given bare."""
    function: Mapping[str, Any] = tool.get("function", tool)
    return function


class ToolCallParser:
    """Splits the text of one answer, as it is generated, into content and calls of `tools`.

    Text that may be part of a call is held back until that is decided, so pieces may be cut
    anywhere: the calls, and the content put together, are the same for every cutting. Blanks
    before and between calls are dropped.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [function_of(tool) for tool in tools]
        self._parameters = {f["name"]: f.get("parameters") or {} for f in functions}
        self._held = ""  # came, and is not decided
        self._at_start = True  # nothing but calls so far: JSON may be one
        self._called = False
        self._cut_short = False

    def feed(self, text: str) -> list[str | ToolCall]:
        """What is decided with a further piece of text, in order."""
        self._held += text
        return self._decide(final=False)

    def finish(self, cut_short: bool = False) -> list[str | ToolCall]:
        """What was held back, when the answer has ended; of one that was cut short (`cut_short`), a
        function that lacks its end is content."""
        self._cut_short = cut_short
        return self._decide(final=True)

    def _decide(self, final: bool) -> list[str | ToolCall]:
        out: list[str | ToolCall] = []
        while self._held:
            decided = self._next(final)
            if decided is None:
                break
            items, end = decided
            self._held = self._held[end:]
            for item in items:
                if isinstance(item, ToolCall):
                    self._called = True
                else:
                    self._at_start = False
                out.append(item)
        return out

    def _next(self, final: bool) -> tuple[Sequence[str | ToolCall], int] | None:
        """The next items, and where in the held text they end; None: it is too early to say."""
        begin = len(self._held) - len(self._held.lstrip())
        if begin == len(self._held):
            blank = self._held if not self._called else ""
            return ([blank] if blank else [], begin) if final else None
        if self._at_start:
            if self._called and self._held[begin] in ";,":
                return [], begin + 1
            if self._held[begin] in "{[":
                return self._leading_json(begin, final)
        found = [(at, tag) for tag in _END_OF if (at := self._held.find(tag)) >= 0]
        if not found:
            end = len(self._held) if final else self._undecided()
            return ([self._held[:end]], end) if end > 0 else None
        at, tag = min(found)
        if before := self._held[:at].rstrip():
            return [before], at
        return self._tagged(at, tag, final)

    def _undecided(self) -> int:
        """Where the end of the held text begins that may be blanks before a tag, or part of one."""
        text = self._held
        for tag in _END_OF:
            for size in range(min(len(tag) - 1, len(text)), 0, -1):
                if text.endswith(tag[:size]):
                    return len(text[: len(text) - size].rstrip())
        return len(text.rstrip())

    def _leading_json(self, begin: int, final: bool) -> tuple[Sequence[str | ToolCall], int] | None:
        text = self._held
        try:
            value, end = _JSON.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            if final or not _is_unfinished(error, len(text)):
                return [text[: begin + 1]], begin + 1
            return None
        calls = self._calls_of(value)
        return (calls or [text[:end]]), end

    def _tagged(
        self, at: int, tag: str, final: bool
    ) -> tuple[Sequence[str | ToolCall], int] | None:
        """What stands from a tag to its end tag; or to the end of a text that lacks it."""
        end_tag = _END_OF[tag]
        begin = at + len(tag) if tag == "<tool_call>" else at
        end = self._held.find(end_tag, begin)
        while end >= 0:
            body, after = self._held[begin:end], end + len(end_tag)
            if calls := self._calls_in(body):
                return calls, after
            if not _ends_in_string(body):
                return [self._held[:after]], after
            end = self._held.find(end_tag, after)
        if not final:
            return None
        return (self._calls_in(self._held[begin:]) or [self._held]), len(self._held)

    def _calls_in(self, body: str) -> list[ToolCall]:
        """The calls in the body of a region; none, unless all of them are valid."""
        if "<function=" in body:
            if self._cut_short and body.rfind("</function>") < body.rfind("<function="):
                return []
            calls = [self._function_call(name, rest) for name, rest in _FUNCTION.findall(body)]
            return [call for call in calls if call] if all(calls) else []
        try:
            return self._calls_of(_JSON.decode(body))
        except json.JSONDecodeError:
            return []

    def _calls_of(self, value: Any) -> list[ToolCall]:
        calls = [self._json_call(item) for item in (value if isinstance(value, list) else [value])]
        return [call for call in calls if call] if all(calls) else []

    def _json_call(self, value: Any) -> ToolCall | None:
        if not isinstance(value, dict) or value.get("name") not in self._parameters:
            return None
        given = [value[key] for key in ("arguments", "parameters") if key in value]
        if len(given) != 1 or not isinstance(given[0], dict):
            return None
        return ToolCall(value["name"], given[0])

    def _function_call(self, name: str, body: str) -> ToolCall | None:
        if name not in self._parameters:
            return None
        root = self._parameters[name]
        properties = root.get("properties") or {}
        given = _PARAMETER.findall(body)
        return ToolCall(
            name,
            {key: _typed(text, types_of(properties.get(key, {}), root)) for key, text in given},
        )


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema, or the one in the same document that it refers to."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    found: Any = root
    for step in reference[2:].split("/"):
        found = found.get(step, {})
    return {**found, **{key: value for key, value in schema.items() if key != "$ref"}}


def types_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[str]:
    """The types that a value may have; "string" where the schema does not say."""
    schema = resolved(schema, root)
    if "anyOf" in schema:
        return [name for option in schema["anyOf"] for name in types_of(option, root)]
    kind = schema.get("type", "string")
    return list(kind) if isinstance(kind, list) else [kind]


def _is_unfinished(error: json.JSONDecodeError, size: int) -> bool:
    """Whether more text may mend it: it is in a string, or a word or an escape that is cut."""
    return error.msg.startswith("Unterminated string") or size - error.pos < len("\\u0000") + 2


def _ends_in_string(body: str) -> bool:
    try:
        _JSON.decode(body)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    return False


def _typed(text: str, wanted: Sequence[str]) -> Any:
    """The text of a parameter as the first type that is wanted; as it is where that is not
    possible."""
    if text.lower() in ("null", "none") and "null" in wanted:
        return None
    kind = next((name for name in wanted if name != "null"), "string")
    try:
        if kind == "integer":
            return int(text)
        if kind == "number":
            value = float(text)
            return int(value) if value.is_integer() and not set(".eE") & set(text) else value
        if kind == "boolean":
            return {"true": True, "false": False}[text.strip().lower()]
        if kind in ("object", "array"):
            return _json_or_literal(text)
    except (KeyError, ValueError, SyntaxError):
        pass
    return text


def _json_or_literal(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return ast.literal_eval(text)
