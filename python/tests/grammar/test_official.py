"""The JSON Schema organisation's own tests, of draft 2020-12, by what appending accepts.

Schemas that compile must accept what is valid and refuse what is not, but for what known.json lists
with its reason; what is missing of a schema language must be an error when it is compiled. The
tests come with jsonschema's source; without a network they are skipped.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="python/tests/grammar/grammar.txt")

from conftest import ROOT
from jsonschema import Draft202012Validator
from jsonschema_specifications import REGISTRY as SPECIFICATIONS

from dendrite import Branch, ConstraintError, Engine, JsonSchema

from .valid import accepts

KNOWN = json.loads((ROOT / "tests/data/schemas/known.json").read_text(encoding="utf-8"))
DRAFT = "json/tests/draft2020-12/"


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Cases by file."""
    package = "jsonschema==" + importlib.metadata.version("jsonschema")
    folder = tmp_path_factory.mktemp("official")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    # (The build that pip makes to learn the package's name uses what grammar.txt lists.)
    source = ["--no-deps", "--no-build-isolation", "--no-binary=jsonschema", "--dest", str(folder)]
    done = subprocess.run([*pip, *source, package], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{package}: its source cannot be had: {done.stderr.strip()[-300:]}")
    cases = {}
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        for member in archive:
            _, _, name = member.name.partition(DRAFT)
            if name.endswith(".json"):
                cases[name] = json.load(archive.extractfile(member))  # type: ignore[arg-type]
    return cases


@pytest.fixture(scope="module")
def root(request: pytest.FixtureRequest) -> Iterator[Branch]:
    with (
        Engine(ROOT / "models/dendrite-24", threads=1, kv_tokens=4096) as engine,
        engine.session() as session,
    ):
        yield session.prefill("\n")


def test_official_tests(suite: dict[str, Any], root: Branch) -> None:
    compiled, found = 0, set()
    for file, cases in sorted(suite.items()):
        for case in cases:
            try:
                start = root.fork().constrain(JsonSchema(json.dumps(case["schema"])))
            except ConstraintError:
                continue
            compiled += 1
            for test in case["tests"]:
                if accepts(start, test["data"]) != test["valid"]:
                    found.add(f"{file}: {case['description']}: {test['description']}")
    listed = {test for tests in KNOWN["differences"].values() for test in tests}
    assert found - listed == set(), "wrong, and not in known.json"
    assert listed - found == set(), "in known.json, and right now: take it out"
    assert compiled == KNOWN["compiled"], "schemas that compile; known.json says how many do"


# What a schema can say and a constraint cannot, with what would make a difference.
UNSUPPORTED: dict[str, Any] = {
    "$dynamicRef": "#node",
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {"required": ["b"]}},
    "not": {"const": 1},
    "uniqueItems": True,
}
# The same of keywords that say something only beside others.
TOGETHER: dict[str, Any] = {
    "contains": {"contains": {"const": 1}, "minContains": 1, "maxContains": 2},
    "if": {"if": {"const": 1}, "then": {"const": 2}, "else": {"const": 3}},
    "unevaluatedItems": {"anyOf": [{"prefixItems": [True]}], "unevaluatedItems": False},
    "unevaluatedProperties": {"anyOf": [{"required": ["a"]}], "unevaluatedProperties": False},
}
BESIDE = {"then", "else", "minContains", "maxContains"}
# What only says something about a schema, or of texts what JSON Schema itself does not check.
NOTES = """$comment $vocabulary contentEncoding contentMediaType contentSchema default deprecated
description examples readOnly title writeOnly""".split()
# What official tests of schemas that compile are about.
SUPPORTED = """$anchor $defs $dynamicAnchor $id $ref $schema additionalProperties allOf anyOf const
enum exclusiveMaximum exclusiveMinimum format items maxItems maxLength maxProperties maximum
minItems
minLength minProperties minimum multipleOf oneOf pattern patternProperties prefixItems properties
propertyNames required type""".split()
OLD = {"$recursiveAnchor", "$recursiveRef", "definitions", "dependencies"}  # of other drafts


@pytest.mark.parametrize("keyword", [*UNSUPPORTED, *TOGETHER])
def test_what_is_not_supported_is_an_error(root: Branch, keyword: str) -> None:
    schema = TOGETHER.get(keyword, {keyword: UNSUPPORTED.get(keyword)})
    for whole in (schema, {"type": "object", "properties": {"a": {"items": schema}}}):
        with root.fork() as branch, pytest.raises(ConstraintError, match=re.escape(keyword)):
            branch.constrain(JsonSchema(whole))


def test_no_keyword_is_forgotten() -> None:
    keywords = set()
    for uri in Draft202012Validator.META_SCHEMA["allOf"]:
        vocabulary = SPECIFICATIONS.contents("https://json-schema.org/draft/2020-12/" + uri["$ref"])
        keywords |= vocabulary["properties"].keys()
    assert keywords - OLD == {*UNSUPPORTED, *TOGETHER, *BESIDE, *NOTES, *SUPPORTED}
