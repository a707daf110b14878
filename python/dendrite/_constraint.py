"""What generated text must be."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dendrite import _core, _doors


class HasJsonSchema(Protocol):
    """A class of pydantic's, or any other thing that tells its JSON schema."""

    def model_json_schema(self) -> dict[str, Any]:
        """The schema."""


class Constraint:
    """What generated text must be: a JsonSchema, a JsonObject, a Regex, a Lark or a Choice.

    Every token that could not be part of it is refused before it is drawn, so what is generated is
    valid whatever the model, the temperature and the seed; only what `max_tokens` cuts short
    (Finish.LENGTH), or a stop string or token (Finish.STOP_INSIDE), is not whole. It is a
    description, without a model: an engine compiles it when it is first used, once for equal ones,
    and Engine.check says beforehand whether it can. Give it to one call
    (``decode(..., constraint=...)``), or to a branch and all of its forks (Branch.constrain). Equal
    ones have equal `kind` and `text`.

    >>> Regex("[0-9]+") == Regex("[0-9]+") != Lark("start: /[0-9]+/")
    True
    """

    __slots__ = ("_native",)

    _native: _core.NativeConstraint

    def __init__(self) -> None:
        raise TypeError(
            "got the class of all constraints; expected JsonSchema, JsonObject, Regex, Lark or "
            "Choice"
        )

    @property
    def kind(self) -> str:
        """Which: "json_schema", "regex", "lark" or "choice"."""
        return self._native.kind

    @property
    def text(self) -> str:
        """The schema, pattern or grammar; of a choice the options as a JSON array."""
        return self._native.text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constraint):
            return NotImplemented
        return (self.kind, self.text) == (other.kind, other.text)

    def __hash__(self) -> int:
        return hash((self.kind, self.text))

    def __reduce__(self) -> Any:
        return type(self), (self.text,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"


class JsonSchema(Constraint):
    """JSON that a schema describes (JSON Schema 2020-12).

    schema: a mapping, JSON text, or a class with `model_json_schema`, as pydantic's have it.

    What of a schema is not supported is a ConstraintError, never ignored, where it changes
    something: not, if, dependencies, uniqueItems, contains, remote $ref; oneOf of what may overlap.
    Patterns are ECMA-262's, without look-around. Numbers are exact at any size. Properties come in
    the schema's order, without spaces, unless the schema's "x-guidance" says otherwise:
    {"whitespace_flexible": true}, "item_separator", "key_separator".

    >>> JsonSchema({"type": "integer", "minimum": 1})
    JsonSchema('{"type":"integer","minimum":1}')
    """

    __slots__ = ()

    def __init__(self, schema: Mapping[str, Any] | str | HasJsonSchema) -> None:
        if not isinstance(schema, (str, Mapping)):
            if not hasattr(schema, "model_json_schema"):
                expected = "a mapping, JSON text, or a class with model_json_schema"
                raise _doors.wrong("schema", schema, expected)
            schema = schema.model_json_schema()
        if not isinstance(schema, str):
            schema = json.dumps(dict(schema), ensure_ascii=False, separators=(",", ":"))
        self._native = _core.NativeConstraint.json_schema(schema)


class JsonObject(JsonSchema):
    """Any JSON object.

    >>> JsonObject() == JsonSchema({"type": "object"})
    True
    """

    __slots__ = ()

    def __init__(self) -> None:
        self._native = _core.NativeConstraint.json_object()

    def __reduce__(self) -> Any:
        return type(self), ()

    def __repr__(self) -> str:
        return "JsonObject()"


class Regex(Constraint):
    """Text that matches a `pattern` as a whole.

    It is of Rust's syntax of regular expressions, without look-around.

    >>> Regex("[0-9]{4}-[0-9]{2}").text
    '[0-9]{4}-[0-9]{2}'
    """

    __slots__ = ()

    def __init__(self, pattern: str) -> None:
        if not isinstance(pattern, str):
            raise _doors.wrong("pattern", pattern, "a str")
        self._native = _core.NativeConstraint.regex(pattern)


class Lark(Constraint):
    """Text of a context-free `grammar` in llguidance's dialect of Lark, from its rule `start`.

    It also knows %json { schema } inside, and special tokens as <name>.

    >>> Lark('start: "yes" | "no"').kind
    'lark'
    """

    __slots__ = ()

    def __init__(self, grammar: str) -> None:
        if not isinstance(grammar, str):
            raise _doors.wrong("grammar", grammar, "a str")
        self._native = _core.NativeConstraint.lark(grammar)


class Choice(Constraint):
    """One of these texts, the `options`.

    >>> Choice(["sure", "impossible"]).options
    ('sure', 'impossible')
    """

    __slots__ = ()

    def __init__(self, options: Sequence[str]) -> None:
        texts = _doors.items("options", options, "a sequence of str")
        for text in texts:
            if not isinstance(text, str):
                raise _doors.wrong("options", text, "a sequence of str")
        self._native = _core.NativeConstraint.choice(texts)

    @property
    def options(self) -> tuple[str, ...]:
        """The texts."""
        return tuple(json.loads(self.text))

    def __reduce__(self) -> Any:
        return type(self), (self.options,)

    def __repr__(self) -> str:
        return f"Choice({list(self.options)!r})"


def of(native: _core.NativeConstraint) -> Constraint:
    """What C++ tells of a branch."""
    if native == _core.NativeConstraint.json_object():
        return JsonObject()
    if native.kind == "choice":
        return Choice(json.loads(native.text))
    kinds = {"json_schema": JsonSchema, "regex": Regex, "lark": Lark}
    return kinds[native.kind](native.text)
