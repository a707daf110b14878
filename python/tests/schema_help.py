"""What tests of constraints share: some schemas, and a checker of what they use of JSON Schema."""

from __future__ import annotations

import re
from typing import Any

CALL = {
    "type": "object",
    "properties": {
        "name": {"enum": ["get_weather", "get_time"]},
        "arguments": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "days": {"type": "integer", "minimum": 0, "maximum": 14},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": -9, "maximum": 9},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Leaf"}, "maxItems": 3},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        },
        "Leaf": {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"const": "leaf"}]},
    },
    "$ref": "#/$defs/Node",
}
CODES = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"},
    "minItems": 1,
    "maxItems": 4,
}

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def check(value: Any, schema: Any, root: Any = None) -> None:
    """Raises AssertionError where the value is not what the schema says."""
    root = root or schema
    unknown = schema.keys() - _CHECKED
    assert not unknown, f"the checker knows nothing of {unknown}"
    if "$ref" in schema:
        check(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    if "anyOf" in schema:
        assert any(_is_valid(value, option, root) for option in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        assert value in schema.get("enum", [schema.get("const")])
    if "type" in schema:
        assert isinstance(value, _TYPES[schema["type"]]), (value, schema)
        assert isinstance(value, bool) == (schema["type"] == "boolean"), (value, schema)
    if isinstance(value, str):
        assert len(value) <= schema.get("maxLength", len(value))
        assert re.search(schema.get("pattern", ""), value)
    if isinstance(value, (int, float)):
        assert schema.get("minimum", value) <= value <= schema.get("maximum", value)
    if isinstance(value, list):
        assert schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
        for item in value:
            check(item, schema.get("items", {}), root)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        assert set(schema.get("required", ())) <= value.keys()
        assert schema.get("additionalProperties", True) or value.keys() <= properties.keys()
        for key, item in value.items():
            check(item, properties.get(key, {}), root)


_CHECKED = {
    *("$defs", "$ref", "anyOf", "enum", "const", "type", "maxLength", "pattern", "minimum"),
    *("maximum", "minItems", "maxItems", "items", "properties", "required"),
    *("additionalProperties", "title", "description", "default"),
}


def _is_valid(value: Any, schema: Any, root: Any) -> bool:
    try:
        check(value, schema, root)
    except AssertionError:
        return False
    return True
