"""What is generated under a schema is valid.

Random weights draw whatever a schema allows, and so find what it should not have allowed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="python/tests/grammar/grammar.txt")

from conftest import DEVICE, ROOT

from dendrite import Engine, Finish, JsonSchema

from .valid import problem

# {"name", "schema", and "ends": false where texts have no bound}
SCHEMAS = json.loads((ROOT / "tests/data/schemas/schemas.json").read_text(encoding="utf-8"))
# Folder, prompt, branches of each schema and temperature above 0.
MODELS = [
    ("tests/data/models/llama2", "a", 4),
    ("tests/data/models/llama3_tied", "b", 4),
    ("tests/data/models/qwen3", "c", 4),
    ("models/dendrite-24", "S 24: 4 9 10 13\n", 2),
]
MAX_TOKENS = 400


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model[0].split("/")[-1])
def model(request: pytest.FixtureRequest) -> Any:
    folder, prompt, branches = request.param
    kv_tokens = len(SCHEMAS) * branches * (MAX_TOKENS + 32)
    with Engine(ROOT / folder, device=DEVICE, threads=1, kv_tokens=kv_tokens) as engine:
        yield engine, prompt, branches


@pytest.mark.parametrize("temperature", [0, 0.7, 1, 2])
def test_what_stopped_is_valid(model: Any, temperature: float) -> None:
    engine, prompt, branches = model
    cases = SCHEMAS * (1 if temperature == 0 else branches)
    with engine.session(seed=int(10 * temperature)) as session:
        root = session.prefill(prompt)
        asked = [root.fork().constrain(JsonSchema(json.dumps(c["schema"]))) for c in cases]
        made = session.decode(asked, max_tokens=MAX_TOKENS, temperature=temperature)
        whole = [branch.is_accepted for branch in asked]
    wrong = []
    for case, generation, is_whole in zip(cases, made, whole, strict=True):
        name, text = case["name"], generation.text
        if generation.finish == Finish.STOP:
            if found := problem(case["schema"], text) or ("" if is_whole else "not accepted"):
                wrong.append(f"{name}: {found}: {text!r}")
        elif generation.finish != Finish.LENGTH or case.get("ends", True):
            wrong.append(f"{name}: {generation.finish.name}: {text!r}")
    assert not wrong, "\n".join(wrong)
