"""What an answer with tools must be: grammars of calls as the model's family writes them.

The formats are those that `_tool_calls` reads; which of them is the model's own is seen from what
its chat template makes of a call. Where a call is required, an answer is calls and nothing else.
Where it is not ("auto"), it is free text, in which a call that has begun is held to the name of a
known tool and to its schema.
"""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dendrite import _core
from dendrite._constraint import JsonSchema, Lark
from dendrite._core import ConstraintError, Error
from dendrite._harmony import ends_of, marks_of
from dendrite.tools import function_of, resolved, types_of

if TYPE_CHECKING:
    from dendrite._engine import Engine

_OPEN = "<tool_call>"
_KEPT = 64  # grammars
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
        self._engine = engine
        added = added_tokens(engine.info.model_path)
        known = {name: token for name, token in added.items() if token < engine.info.vocab}
        marks = marks_of(engine)
        self._writer: _Writer | _HarmonyWriter = (
            _HarmonyWriter(marks, engine.info.eos)
            if marks is not None
            else _Writer(form_of(engine), known, engine.info.eos)
        )
        self._made: dict[str, Lark | None] = {}

    def constraint(
        self, tools: Sequence[Function], choice: ToolChoice, answer: JsonSchema | None = None
    ) -> Lark | None:
        """What an answer must be; with `answer`, calls or JSON of this schema.

        A tool whose schema cannot be compiled is named, with the reason, in a UserWarning, and
        takes no other with it: where an answer may be free text it may be called with any
        arguments, and where it must be a call it is left out. Raises ConstraintError where no tool
        is left then. With a model that cannot be constrained at all an answer that may be free
        text has no constraint: None.
        """
        functions = [function_of(tool) for tool in tools]
        key = json.dumps([functions, choice, answer and answer.text])
        try:
            return self._made[key]
        except KeyError:
            made = self._make(functions, choice, answer)
        if len(self._made) >= _KEPT:
            self._made.clear()
        self._made[key] = made
        return made

    def final_answer(self, answer: JsonSchema) -> Lark:
        """Of a model that writes Harmony: thoughts, or none, and JSON of this schema."""
        return Lark(self._writer.grammar([], ToolChoice(), answer))

    def _make(
        self, functions: Sequence[Function], choice: ToolChoice, answer: JsonSchema | None
    ) -> Lark | None:
        is_held = choice.required or answer is not None
        anything = {"name": "any", "parameters": {"additionalProperties": True}}
        if (problem := self._problem_of([anything], choice, answer)) is not None:
            if is_held:
                raise ConstraintError(problem)
            return None  # the model cannot be constrained at all
        if self._problem_of(functions, choice, answer) is None:
            return Lark(self._writer.grammar(functions, choice, answer))
        known, refused = [], []
        for each in functions:
            reason = self._problem_of([each], ToolChoice(required=True), None)
            if reason is None:
                known.append(each)
                continue
            refused.append(f"tool {each['name']!r}: {reason}")
            if not is_held:
                known.append({**anything, "name": each["name"]})
        if not known:
            raise ConstraintError("; ".join(refused))
        for line in refused:
            fate = "it is left out" if is_held else "it may be called with any arguments"
            warnings.warn(f"{line}; {fate}", UserWarning, stacklevel=2)
        grammar = Lark(self._writer.grammar(known, choice, answer))
        self._engine.check(grammar)
        return grammar

    def _problem_of(
        self, functions: Sequence[Function], choice: ToolChoice, answer: JsonSchema | None
    ) -> str | None:
        """Why there is no such grammar; None: there is one."""
        try:
            self._engine.check(Lark(self._writer.grammar(functions, choice, answer)))
        except ConstraintError as error:
            return str(error)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            return f"no JSON schema of an object: {error!r}"  # which the writer could not read
        return None


class Form(NamedTuple):
    """How a model writes a call."""

    tag: bool  # in <tool_call> and </tool_call>
    function: bool  # as <function=name>...</function>; else as JSON
    key: str = "arguments"  # of JSON; or "parameters"
    harmony: bool = False  # as a message in Harmony; the others say nothing then


def form_of(engine: Engine) -> Form:
    """From what the chat template says of a tool and of a call."""
    if marks_of(engine) is not None:
        return Form(tag=False, function=False, harmony=True)
    function = {"name": "probe_tool", "description": "", "parameters": {"type": "object"}}
    call = {"name": "probe_tool", "arguments": {"probe_key": "probe"}}
    calls = [{"id": "probe1234", "type": "function", "function": call}]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "probe"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "probe", "tool_call_id": "probe1234", "name": "probe_tool"},
    ]
    text: str
    try:
        text = engine.render_chat(messages, tools=[{"type": "function", "function": function}])
    except Error:  # it knows no tools
        text = ""
    if "<function=" in text:
        return Form(tag="<tool_call>" in text, function=True)
    named = re.search(r'"parameters"\s*:\s*\{\s*"probe_key"', text)
    tag = re.search(r"<tool_call>\s*\{", text)
    return Form(tag is not None, False, "parameters" if named else "arguments")


@functools.lru_cache(maxsize=8)
def added_tokens(model_path: str) -> Mapping[str, int]:
    """The tokens that are no text to a grammar, which has to name them: special ones and tags."""
    text = _core.model_text(model_path, "tokenizer.json")
    added = json.loads(text or "{}").get("added_tokens") or []
    tags = re.compile(r"<.*>", re.DOTALL)
    return {
        t["content"]: t["id"] for t in added if t.get("special") or tags.fullmatch(t["content"])
    }


class _Writer:
    """Writes grammars in Lark. In them `call` is one call without its tags."""

    def __init__(self, form: Form, added: Mapping[str, int], eos: Iterable[int]) -> None:
        self._form = form
        self._added = added
        opening = {added[_OPEN]} if form.tag and _OPEN in added else set()
        # Tokens that are no text, and that an answer may have in it (<think>, <|python_tag|>).
        self._others = _token_set(set(added.values()) - set(eos) - opening)
        self._free = f"(TEXT | {self._others})" if self._others else "TEXT"

    def grammar(
        self, functions: Sequence[Function], choice: ToolChoice, answer: JsonSchema | None
    ) -> str:
        """See CallGrammar.constraint."""
        if choice.required:
            lines = ["start: calls", self._calls(choice)]
        elif answer is not None:
            said = f"answer: %json {_json(_with_blanks(json.loads(answer.text)))}"
            lines = ["start: calls | answer", said, self._calls(choice)]
        elif self._form.tag or self._form.function:
            lines = self._tags_in_text(choice)
        else:
            lines = self._json_or_text(choice)
        # (JSON in the pieces of which %json makes it: the longest match alone decides what a piece
        # is, and "{" may also begin the answer.)
        begin = '"<function="' if self._form.function else '"{" "\\"name\\"" /: ?/'
        lines += [f"call: {begin} rest", _one_of("rest", len(functions))]
        for i, function in enumerate(functions):
            lines += self._function(i, function) if self._form.function else self._json(i, function)
        return "\n".join(lines) + "\n"

    def _calls(self, choice: ToolChoice) -> str:
        one = f'{self._token(_OPEN)} "\\n"? call {self._close()}' if self._form.tag else "call"
        if not choice.parallel:
            return f"calls: {one}"
        if self._form.tag or self._form.function:
            return f'calls: {one} ("\\n"? {one})*'
        return f'calls: {one} (/; ?/ {one})* | "[" {one} (/, ?/ {one})* "]"'

    def _tags_in_text(self, choice: ToolChoice) -> list[str]:
        begun, lines = [], ["TEXT: /(.|\\n)+/"]
        # Where a lazy one has matched, the text is not TEXT any more.
        if self._form.tag:
            token = f" | {self._token(_OPEN)}" if _OPEN in self._added else ""
            lines.append(f'opening[lazy]: /(.|\\n)*/ "{_OPEN}"')
            begun.append(f'(opening{token}) "\\n"? call {self._close()}')
        if self._form.function:
            lines.append('bare[lazy]: /(.|\\n)*/ "<function="')
            begun.append("bare rest")
        several = f"({self._free} | begun)*" if choice.parallel else f"{self._free}* begun?"
        return [f"start: {several}", *lines, f"begun: {' | '.join(begun)}"]

    def _json_or_text(self, choice: ToolChoice) -> list[str]:
        before = f"{self._others}*" if self._others else ""
        lines = [f"start: {before} begun | {self._free}*", "TEXT: /(.|\\n)+/"]
        # Where a lazy one has matched, the text is not TEXT any more.
        lines.append('first[lazy]: /\\s*\\{\\s*"name"\\s*:/')
        if not choice.parallel:
            return [*lines, 'begun: first " "? rest']
        lines.append('first_of_list[lazy]: /\\s*\\[\\s*\\{\\s*"name"\\s*:/')
        listed = 'first_of_list " "? rest (/, ?/ call)* "]"'
        return [*lines, f'begun: first " "? rest (/; ?/ call)* | {listed}']

    def _json(self, i: int, function: Function) -> list[str]:
        name, key = _quoted(_json(function["name"])), _quoted(_json(self._form.key))
        return [
            f'rest_{i}: {name} /, ?/ {key} /: ?/ arguments_{i} "}}"',
            f"arguments_{i}: %json {_json(_arguments(function))}",
        ]

    def _function(self, i: int, function: Function) -> list[str]:
        parameters = function.get("parameters") or {}
        properties = parameters.get("properties") or {}
        rules, lines = [], []
        for j, (key, schema) in enumerate(properties.items()):
            optional = "" if key in parameters.get("required", ()) else "?"
            rules.append(f"parameter_{i}_{j}{optional}")
            lines += _parameter(f"{i}_{j}", key, resolved(schema, parameters), parameters)
        if parameters.get("additionalProperties"):
            rules.append(f"other_{i}*")
            lines += [f'other_{i}: "<parameter=" /[^>\\n]+/ ">\\n" text_{i}', _text_value(i, {})]
        head = _quoted(function["name"] + ">\n")
        return [f'rest_{i}: {" ".join([head, *rules])} "</function>"', *lines]

    def _close(self) -> str:
        return '"\\n"? ' + self._token("</tool_call>")

    def _token(self, tag: str) -> str:
        return f"<[{self._added[tag]}]>" if tag in self._added else _quoted(tag)


class _HarmonyWriter:
    """Writes grammars of answers in Harmony, in Lark; a call is the last message of one."""

    def __init__(self, marks: Mapping[str, int], eos: Sequence[int]) -> None:
        self._marks = {mark: _token_set([token]) for mark, token in marks.items()}
        ends = _token_set(ends_of(marks, eos))
        self._end = f" {ends}?" if ends else ""

    def grammar(
        self, functions: Sequence[Function], choice: ToolChoice, answer: JsonSchema | None
    ) -> str:
        """See CallGrammar.constraint and final_answer."""
        channel, message = self._marks["<|channel|>"], self._marks["<|message|>"]
        following = f'{self._marks["<|end|>"]} {self._marks["<|start|>"]} "assistant"'
        lines, last = ["TEXT: /(.|\\n)+/"], []
        if choice.required or answer is not None:
            before = f"(thought {following})?"
            lines.append(f'thought: {channel} "analysis" {message} TEXT?')
        else:
            before = f"(said {following})*"
            channels = '("analysis" | "commentary" | "final")'
            lines.append(f"said: {channel} {channels} {message} TEXT?")
            last.append("said")
        if answer is not None and not choice.required:
            last.append("final")
            lines.append(f'final: {channel} "final" {message} answer')
            lines.append(f"answer: %json {_json(_with_blanks(json.loads(answer.text)))}")
        if functions:
            last.append("call")
            typed = self._marks.get("<|constrain|>")
            lines.append("type: " + (f'" "? {typed} "json" | ' if typed else "") + '" json"')
            lines.append(_one_of("call", len(functions)))
        for i, function in enumerate(functions):
            to = f"to=functions.{function['name']}"
            first = f"{channel} {_quoted(f'commentary {to}')}"
            behind = f'{_quoted(f" {to}")} {channel} "commentary"'
            lines.append(f"call_{i}: ({first} | {behind}) type? {message} arguments_{i}")
            lines.append(f"arguments_{i}: %json {_json(_arguments(function))}")
        start = f"start: {before} ({' | '.join(last)}){self._end}"
        return "\n".join([start, *lines]) + "\n"


def _parameter(
    name: str, key: str, schema: Mapping[str, Any], root: Mapping[str, Any]
) -> list[str]:
    """A parameter of a function; texts are written as they are, all else as JSON."""
    head = f"parameter_{name}: " + _quoted(f"<parameter={key}>\n")
    end = _quoted("\n</parameter>\n")
    if "string" not in types_of(schema, root):
        defined = {key: root[key] for key in ("$defs", "definitions") if key in root}
        written = _json(_with_blanks({**schema, **defined}))
        return [f"{head} value_{name} {end}", f"value_{name}: %json {written}"]
    if listed := _listed(schema, root):
        return [f"{head} ({' | '.join(map(_quoted, listed))}) {end}"]
    return [f"{head} text_{name}", _text_value(name, schema)]


def _listed(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[str]:
    """The texts that a schema allows; none where they are not a list of texts and null."""
    schema = resolved(schema, root)
    if "anyOf" in schema:
        parts = [_listed(option, root) for option in schema["anyOf"]]
        return [text for part in parts for text in part] if all(parts) else []
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if schema.get("type") == "null":
        values = ["null"]
    return list(values) if all(isinstance(value, str) for value in values) else []


def _text_value(name: str | int, schema: Mapping[str, Any]) -> str:
    """Up to the parameter's end; what ToolCallParser would take for a tag is not in it."""
    size = f"{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}"
    tags = r"<\/?(parameter|function|tool_call)[=>]"
    end = _quoted("\n</parameter>\n")
    return (
        f"text_{name}[lazy]: TEXT_{name} {end}\n"
        f"TEXT_{name}: /(.|\\n){size}/ & ~/(.|\\n)*{tags}(.|\\n)*/"
    )


def _arguments(function: Function) -> Any:
    """The schema of the arguments, which are an object."""
    schema = closed(function.get("parameters") or {"properties": {}})
    if not _COMPOSED & schema.keys():
        schema = {"type": "object", **schema}
    return _with_blanks(schema)


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


def _with_blanks(schema: Any) -> Any:
    """Written as models have seen JSON: with the blanks of json.dumps, or with none."""
    if not isinstance(schema, dict):
        return schema
    blanks = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
    return {"x-guidance": blanks, **schema}


def _one_of(rule: str, count: int) -> str:
    return f"{rule}: " + " | ".join(f"{rule}_{i}" for i in range(count))


def _token_set(ids: Iterable[int]) -> str:
    """<[1-3,7-7]> of 1, 2, 3 and 7; empty of none."""
    runs: list[list[int]] = []
    for token in sorted(ids):
        if runs and token == runs[-1][1] + 1:
            runs[-1][1] = token
        else:
            runs.append([token, token])
    return f"<[{','.join(f'{first}-{last}' for first, last in runs)}]>" if runs else ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _quoted(text: str) -> str:
    """A text as a literal."""
    return json.dumps(text, ensure_ascii=False)
