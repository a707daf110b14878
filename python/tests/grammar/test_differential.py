"""Random schemas over random values: jsonschema and a constraint say the same of each."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="python/tests/grammar/grammar.txt")

from conftest import ROOT
from jsonschema import Draft202012Validator

from dendrite import Branch, ConstraintError, Engine, JsonSchema

from .valid import accepts

KEYS = ["a", "b", "ab"]
TYPES = ["object", "array", "string", "integer", "number", "boolean", "null"]
STRINGS = ["", "a", "ab", "abc", "b", "1", "é", 'q"\n']


def value(draw: random.Random, depth: int) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: draw.random() < 0.5,
        lambda: draw.randrange(-3, 12),
        lambda: draw.choice([0.5, -1.25, 2.5]),
        lambda: draw.choice(STRINGS),
        lambda: [value(draw, depth - 1) for _ in range(draw.randrange(4))],
        lambda: {key: value(draw, depth - 1) for key in KEYS if draw.random() < 0.5},
    ]
    return draw.choice(kinds if depth > 0 else kinds[:5])()


def schema(draw: random.Random, depth: int = 2) -> dict[str, Any]:
    def below() -> Any:
        leaves: list[Any] = [True, False, {"type": "integer"}, {"type": "string"}, {"const": 1}]
        return schema(draw, depth - 1) if depth > 0 else draw.choice(leaves)

    keywords: dict[str, Callable[[], Any]] = {
        "type": lambda: draw.choice([draw.choice(TYPES), draw.sample(TYPES, 2)]),
        "enum": lambda: [value(draw, 1) for _ in range(draw.randrange(1, 5))],
        "const": lambda: value(draw, 1),
        "minimum": lambda: draw.randrange(-2, 5),
        "maximum": lambda: draw.randrange(9),
        "exclusiveMinimum": lambda: draw.randrange(-2, 5),
        "exclusiveMaximum": lambda: draw.randrange(9),
        "multipleOf": lambda: draw.choice([2, 3, 0.5]),
        "minLength": lambda: draw.randrange(3),
        "maxLength": lambda: draw.randrange(4),
        "pattern": lambda: draw.choice(["^a", "b$", "a|1", "^[ab]+$", "é"]),
        "items": below,
        "prefixItems": lambda: [below() for _ in range(draw.randrange(1, 3))],
        "minItems": lambda: draw.randrange(3),
        "maxItems": lambda: draw.randrange(4),
        "properties": lambda: {key: below() for key in KEYS if draw.random() < 0.6},
        "required": lambda: draw.sample(KEYS, draw.randrange(1, 3)),
        "additionalProperties": below,
        "patternProperties": lambda: {draw.choice(["^a$", "b"]): below()},
        "minProperties": lambda: draw.randrange(3),
        "maxProperties": lambda: draw.randrange(3),
        "anyOf": lambda: [below(), below()],
        "allOf": lambda: [below(), below()],
    }
    return {key: keywords[key]() for key in draw.sample(sorted(keywords), draw.randrange(1, 5))}


@pytest.fixture(scope="module")
def root() -> Iterator[Branch]:
    with (
        Engine(ROOT / "models/dendrite-24", threads=1, kv_tokens=4096) as engine,
        engine.session() as session,
    ):
        yield session.prefill("\n")


def test_random_schemas(root: Branch) -> None:
    compiled, verdicts, wrong = 0, {True: 0, False: 0}, []
    for seed in range(400):
        draw = random.Random(seed)
        made = schema(draw)
        try:
            start = root.fork().constrain(JsonSchema(made))
        except ConstraintError:
            continue
        compiled += 1
        validator = Draft202012Validator(made)
        for _ in range(15):
            candidate = value(draw, 2)
            valid = validator.is_valid(candidate)
            verdicts[valid] += 1
            if accepts(start, candidate) != valid:
                wrong.append(f"{seed}: {json.dumps(made)}: {json.dumps(candidate)}: {valid}")
    assert not wrong, "\n".join(wrong)
    assert compiled > 300 and min(verdicts.values()) > 500
