"""Tool calls in generated text, in the formats of the model families that Dendrite runs.

They are told apart by what stands in the text; all but the last anywhere in it:

- ``<tool_call>{"name": "f", "arguments": {...}}</tool_call>`` (Qwen, Hermes, Granite 4), also
  between ``<|tool_call|>`` and ``<|/tool_call|>`` (Phi-4, Granite 3);
- ``<function=f><parameter=p>value</parameter></function>``, in ``<tool_call>``,
  ``<seed:tool_call>`` or bare (Qwen's coders, Seed-OSS), and with ``<invoke name="f">`` and
  ``<parameter name="p">`` (MiniMax);
- ``<tool_call>f<arg_key>p</arg_key><arg_value>value</arg_value></tool_call>`` (GLM); in these
  values become what the tool's JSON schema says they are;
- ``[TOOL_CALLS]f[ARGS]{...}`` (Mistral), ``<|tool_call>call:f{p:value}<tool_call|>`` (Gemma 4),
  ``<|tool_call_start|>[f(p=value)]<|tool_call_end|>`` (LFM2);
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

_END_OF = {
    "<tool_call>": "</tool_call>",
    "<function=": "</function>",
    "<invoke name=": "</invoke>",
    "<seed:tool_call>": "</seed:tool_call>",
    "<minimax:tool_call>": "</minimax:tool_call>",
    "<|tool_call|>": "<|/tool_call|>",
    "<|tool_call>": "<tool_call|>",
    "<|tool_call_start|>": "<|tool_call_end|>",
    "[TOOL_CALLS]": "",
}
_BARE = ("<function=", "<invoke name=")  # tags that are part of a call
MARKS = frozenset(
    {*_END_OF, *_END_OF.values(), "[ARGS]", "[CALL_ID]", '<|"|>'}
    | {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}
) - {"", *_BARE, "</function>", "</invoke>"}
"""What stands in calls, and may be a special token, which is no text."""
MISTRAL = "[TOOL_CALLS]"
_FUNCTION = re.compile(r"<function=([^>]*)>(.*?)(?:</function>|$)", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=([^>]*)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|$)", re.DOTALL
)
_INVOKE = re.compile(r'<invoke name="([^"]*)">(.*?)(?:</invoke>|$)', re.DOTALL)
_NAMED_PARAMETER = re.compile(
    r'<parameter name="([^"]*)">\n?(.*?)\n?(?:</parameter>|(?=<parameter name=)|$)', re.DOTALL
)
_KEY = re.compile(
    r"<arg_key>((?:(?!</arg_key>).)*)</arg_key>\s*<arg_value>(.*?)(?:</arg_value>|(?=<arg_key>)|$)",
    re.DOTALL,
)
_NAMED = re.compile(r"([^\[\]{}\s]+)(?:\[CALL_ID\][^\[\]\s]*)?(?:\[ARGS\]\s*)?(?={|$)")
_QUOTE = '<|"|>'
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
        opens = self._held.startswith(MISTRAL[: len(self._held) - begin], begin)
        if self._at_start and not (opens and (len(self._held) - begin > 1 or not final)):
            if self._called and self._held[begin] in ";,":
                return [], begin + 1
            if self._held[begin] in "{[":
                return self._leading_json(begin, final)
        found = [(at, tag) for tag in _END_OF if (at := self._held.find(tag)) >= 0]
        if not found:
            end = len(self._held) if final else self._undecided()
            return ([self._held[:end]], end) if end > 0 else None
        at, tag = min(found, key=lambda each: (each[0], -len(each[1])))
        if before := self._held[:at].rstrip():
            return [before], len(before)
        if tag == MISTRAL:
            return self._named(at, final)
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
        begin = at if tag in _BARE else at + len(tag)
        end = self._held.find(end_tag, begin)
        while end >= 0:
            body, after = self._held[begin:end], end + len(end_tag)
            if calls := self._calls_in(body):
                return calls, after
            if not _ends_in_string(body) and body.count(_QUOTE) % 2 == 0:
                return [self._held[:after]], after
            end = self._held.find(end_tag, after)
        if not final:
            return None
        return (self._calls_in(self._held[begin:]) or [self._held]), len(self._held)

    def _named(self, at: int, final: bool) -> tuple[Sequence[str | ToolCall], int] | None:
        """What stands from Mistral's tag to the end of the call's JSON."""
        text = self._held
        begin = at + len(MISTRAL)
        begin += len(text[begin:]) - len(text[begin:].lstrip())
        name = _NAMED.match(text, begin)
        json_begin = begin if text[begin : begin + 1] in ("{", "[") else name.end() if name else -1
        if not final and (begin == len(text) or json_begin == len(text)):
            return None
        unfinished = (
            not final
            and "[" in text[begin:]
            and re.fullmatch(
                r"[^\[\]{}\s]+\[[A-Z_]*(\][^\[\]\s{}]*)?(\[[A-Z]*)?\]?\s*", text[begin:]
            )
        )
        if json_begin < 0 or json_begin == len(text):
            return None if unfinished else ([text[:begin]], begin)
        try:
            value, end = _JSON.raw_decode(text, json_begin)
        except json.JSONDecodeError as error:
            if final or not _is_unfinished(error, len(text)):
                return [text[:json_begin]], json_begin
            return None
        if json_begin != begin and name:
            value = {"name": name[1], "arguments": value}
        return (self._calls_of(value) or [text[:end]]), end

    def _calls_in(self, body: str) -> list[ToolCall]:
        """The calls in the body of a region; none, unless all of them are valid."""
        for begin, end, pattern, parameter in (
            ("<function=", "</function>", _FUNCTION, _PARAMETER),
            ("<invoke name=", "</invoke>", _INVOKE, _NAMED_PARAMETER),
        ):
            if begin not in body:
                continue
            if self._cut_short and body.rfind(end) < body.rfind(begin):
                return []
            found = [
                self._call(name, parameter.findall(rest)) for name, rest in pattern.findall(body)
            ]
            return [call for call in found if call] if all(found) else []
        name = re.split(r"[<\s]", body.lstrip(), maxsplit=1)[0]
        if name in self._parameters and not body.lstrip()[len(name) :].lstrip().startswith("("):
            call = self._call(name, _KEY.findall(body))
            return [] if call is None or self._cut_short else [call]
        if body.startswith("call:"):
            return self._gemma_call(body)
        try:
            return self._calls_of(_JSON.decode(body))
        except json.JSONDecodeError:
            return self._python_calls(body)

    def _gemma_call(self, body: str) -> list[ToolCall]:
        name, brace, rest = body[len("call:") :].partition("{")
        if not brace or name not in self._parameters:
            return []
        try:
            value, end = _gemma_value(brace + rest, 0)
        except ValueError:
            return []
        return [] if (brace + rest)[end:].strip() else [ToolCall(name, value)]

    def _python_calls(self, body: str) -> list[ToolCall]:
        text = body.strip()
        try:
            tree = ast.parse(text, mode="eval").body
            calls = []
            for each in tree.elts if isinstance(tree, ast.List) else [tree]:
                if not isinstance(each, ast.Call) or not isinstance(each.func, ast.Name):
                    return []
                if each.args or each.func.id not in self._parameters:
                    return []
                written = {str(k.arg): ast.get_source_segment(text, k.value) for k in each.keywords}
                given = {key: _json_or_literal(value or "") for key, value in written.items()}
                calls.append(ToolCall(each.func.id, json.loads(json.dumps(given))))
        except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
            return []
        return calls

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

    def _call(self, name: str, given: Sequence[tuple[str, str]]) -> ToolCall | None:
        if name not in self._parameters:
            return None
        root = self._parameters[name]
        properties = root.get("properties") or {}
        return ToolCall(
            name,
            {key: _typed(text, types_of(properties.get(key, {}), root)) for key, text in given},
        )


def _gemma_value(text: str, at: int) -> tuple[Any, int]:
    """A value as Gemma writes it, and where it ends. Raises ValueError where there is none."""
    at += len(text[at:]) - len(text[at:].lstrip())
    if text.startswith(_QUOTE, at):
        begin = at + len(_QUOTE)
        end = text.index(_QUOTE, begin)
        return text[begin:end], end + len(_QUOTE)
    if text[at : at + 1] == '"':
        return _JSON.raw_decode(text, at)
    if text[at : at + 1] not in ("{", "["):
        end = at + len(re.split(r"[,}\]]", text[at:], maxsplit=1)[0])
        return _word(text[at:end].strip()), end
    is_object = text[at] == "{"
    close = "}" if is_object else "]"
    items: list[Any] = []
    members: dict[str, Any] = {}
    at += 1
    while True:
        at += len(text[at:]) - len(text[at:].lstrip())
        if text[at : at + 1] == close:
            return (members if is_object else items), at + 1
        key = ""
        if is_object:
            quoted = text.startswith((_QUOTE, '"'), at)
            key, at = _gemma_value(text, at) if quoted else _bare_key(text, at)
            at = text.index(":", at) + 1
        value, at = _gemma_value(text, at)
        if is_object:
            members[key] = value
        else:
            items.append(value)
        at += len(text[at:]) - len(text[at:].lstrip())
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != close:
            raise ValueError(text[at:])


def _bare_key(text: str, at: int) -> tuple[str, int]:
    end = text.index(":", at)
    key = text[at:end].strip()
    if not key or set(key) & set("{}[],"):
        raise ValueError(key)
    return key, end


def _word(text: str) -> Any:
    """A number or a word; what is no JSON is a text."""
    if not text:
        raise ValueError(text)
    try:
        return json.loads({"None": "null", "True": "true", "False": "false"}.get(text, text))
    except json.JSONDecodeError:
        return text


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
