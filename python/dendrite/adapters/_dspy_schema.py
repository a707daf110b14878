"""JSON schemas of what a DSPy signature puts out, open-ended mappings and their bounds included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from dendrite._call_grammar import closed

_LARGEST = 10**15  # of a number without bounds of its own; a double has all integers up to it
_FINEST = 1e-6  # of a number that is no integer, so that its digits end
_DEPTH = 2  # of lists and mappings in a value that may be anything
_PARTS = ("properties", "patternProperties", "$defs", "definitions")
_ALTERNATIVES = ("anyOf", "oneOf", "allOf", "prefixItems")


def outputs_schema(
    fields: Mapping[str, Any], max_length: int | None, max_items: int
) -> dict[str, Any]:
    """An object with all of `fields`, types by name, and no others.

    With `max_length` every text, list, mapping and number that has no bound of its own gets one:
    characters, items (`max_items`), digits.
    """
    types: dict[str, Any] = {name: (annotation, ...) for name, annotation in fields.items()}
    schema: dict[str, Any] = closed(pydantic.create_model("Outputs", **types).model_json_schema())
    return schema if max_length is None else _Bounds(max_length, max_items).of(schema)


class _Bounds:
    def __init__(self, max_length: int, max_items: int) -> None:
        self._length = max_length
        self._items = max_items

    def of(self, schema: Mapping[str, Any], depth: int = _DEPTH) -> dict[str, Any]:
        """The schema with an end to all that has none. (One that refers to itself has none.)"""
        made = dict(schema)
        for key in _PARTS:
            if key in made:
                made[key] = {name: self._value(part, depth) for name, part in made[key].items()}
        for key in _ALTERNATIVES:
            if key in made:
                made[key] = [self._value(part, depth) for part in made[key]]
        for key in ("items", "additionalProperties"):
            if key in made and made[key] is not False:
                made[key] = self._value(made[key], depth)
        if "enum" in made or "const" in made:
            return made
        kinds = made.get("type", ())
        for kind in (kinds,) if isinstance(kinds, str) else kinds:
            for key, bound in self._bounds(kind, made, depth).items():
                made.setdefault(key, bound)
        return made

    def _bounds(self, kind: str, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        if kind == "string" and not {"pattern", "format"} & schema.keys():
            return {"maxLength": self._length}
        if kind == "array":
            return {"maxItems": self._items, "items": self._anything(depth)}
        if kind == "object" and schema.get("additionalProperties", True):
            return {
                "maxProperties": self._items,
                "propertyNames": {"maxLength": self._length},
                "additionalProperties": self._anything(depth),
            }
        if kind in ("integer", "number"):
            whole = {"multipleOf": _FINEST} if kind == "number" else {}
            low, high = {"minimum": -_LARGEST}, {"maximum": _LARGEST}
            return {
                **({} if "exclusiveMinimum" in schema else low),
                **({} if "exclusiveMaximum" in schema else high),
                **whole,
            }
        return {}

    def _value(self, schema: Any, depth: int) -> dict[str, Any]:
        """A schema in another, of which `{}` and `True` are anything."""
        if schema is True or not (schema.keys() - {"title", "description", "default"}):
            return self._anything(depth)
        return self.of(schema, depth)

    def _anything(self, depth: int) -> dict[str, Any]:
        kinds = ["string", "number", "boolean", "null"]
        if depth > 0:
            kinds += ["array", "object"]
        return {"anyOf": [self.of({"type": kind}, depth - 1) for kind in kinds]}
