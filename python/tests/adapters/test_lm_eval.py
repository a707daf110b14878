"""lm-evaluation-harness, unmodified: three YAML tasks, and what the adapter promises."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="pip install -r python/tests/adapters/lm_eval.txt")

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

from dendrite import Engine, Error
from dendrite.adapters.lm_eval import DendriteLM

from . import offline
from .game24 import MODELS, puzzles

MODEL = str(MODELS / "dendrite-24")
JUDGE = """
task: judge
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{folder}/judge.jsonl"}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{state}}}}?"
doc_to_choice: [sure, impossible]
doc_to_target: label
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""
SOLVE = """
task: solve
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{folder}/solve.jsonl"}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{puzzle}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["ok"], max_gen_toks: 100, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""
PERPLEXITY = """
task: perplexity
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{folder}/solve.jsonl"}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{puzzle}}}}{{{{answer}}}}"
metric_list: [{{metric: byte_perplexity}}]
"""
RESULTS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if a % b == 0 else 0,
}


def moves(numbers: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Each legal line of the game with the numbers that it leaves."""
    out = []
    for i, j in combinations(range(len(numbers)), 2):
        rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
        large, small = sorted((numbers[i], numbers[j]), reverse=True)
        for sign, result in RESULTS.items():
            if 1 <= (value := result(large, small)) <= 999:
                left = sorted([*rest, value])
                shown = " ".join(map(str, left))
                out.append((f"{large}{sign}{small}={value} | {shown}", left))
    return out


def solvable(numbers: Sequence[int]) -> bool:
    if len(numbers) == 1:
        return list(numbers) == [24]
    return any(solvable(left) for _, left in moves(numbers))


def puzzle(mode: str, numbers: Sequence[int]) -> str:
    return f"{mode} 24: {' '.join(map(str, numbers))}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, engine_24: Engine) -> Path:
    """The tasks and their data."""
    folder = tmp_path_factory.mktemp("tasks")
    judge, solve = [], []
    with engine_24.session() as session:
        for numbers in puzzles(6):
            for line, left in moves(numbers)[::9]:
                state = puzzle("P", numbers) + line + "\n"
                judge.append({"state": state, "label": 0 if solvable(left) else 1})
            prompt = puzzle("S", numbers)
            answer = session.decode(session.prefill(prompt), stop=["ok"], temperature=0).text
            solve.append({"puzzle": prompt, "answer": answer})
    for name, rows in (("judge", judge), ("solve", solve)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("judge", JUDGE), ("solve", SOLVE), ("perplexity", PERPLEXITY)):
        (folder / f"{name}.yaml").write_text(text.format(folder=folder))
    return folder


@pytest.fixture(scope="module")
def results(folder: Path, engine_24: Engine) -> dict[str, Any]:
    """All three tasks, evaluated."""
    results: dict[str, Any] = lm_eval.simple_evaluate(
        DendriteLM(engine_24, batch_size=4),
        tasks=["judge", "solve", "perplexity"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )
    return results


def score(cli: str, *words: str) -> list[float]:
    """What the command line says."""
    ran = subprocess.run(
        [cli, "score", "--json", "--model", MODEL, *words], capture_output=True, check=True
    )
    return [entry["logprob"] for entry in json.loads(ran.stdout)["scores"]]


def ids(tokens: list[int]) -> str:
    return ",".join(map(str, tokens))


def instance(kind: str, *arguments: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def test_tasks_give_what_the_model_can(results: dict[str, Any]) -> None:
    assert results["results"]["judge"]["acc,none"] > 0.9
    assert results["results"]["solve"]["exact_match,none"] == 1
    assert 1 < results["results"]["perplexity"]["byte_perplexity,none"] < 10


def test_log_likelihoods_are_the_command_lines_bit_for_bit(
    results: dict[str, Any], cli: str
) -> None:
    for sample in results["samples"]["judge"][:6]:
        context = sample["arguments"][0][0]
        expected = score(cli, "--prompt", context, "--continuation", "sure",
                         "--continuation", "impossible")  # fmt: skip
        assert [response[0][0] for response in sample["resps"]] == expected


def test_rolling_log_likelihoods_are_the_command_lines(
    results: dict[str, Any], cli: str, engine_24: Engine
) -> None:
    sample = results["samples"]["perplexity"][0]
    text = engine_24.encode(sample["arguments"][0][0]).tolist()
    # As the harness's hf model does, whose tokenizer adds BOS to the text: that is scored, too.
    expected = score(cli, "--prompt-ids", ids(text[:1]), "--continuation-ids", ids(text))
    assert [sample["resps"][0][0]] == expected


def test_is_greedy_is_what_greedy_decoding_does(results: dict[str, Any], engine_24: Engine) -> None:
    seen = set()
    with engine_24.session() as session:
        for sample in results["samples"]["judge"][:12]:
            for (context, text), response in zip(sample["arguments"], sample["resps"], strict=True):
                wanted = engine_24.encode(text, add_special=False).tolist()
                greedy = session.decode(
                    session.prefill(context), max_tokens=len(wanted), temperature=0
                )
                assert response[0][1] == (greedy.ids == wanted)
                seen.add(response[0][1])
    assert seen == {True, False}


@pytest.mark.parametrize("kv_tokens", [65536, 1024])
def test_scoring_computes_what_is_shared_once(kv_tokens: int) -> None:
    """Also where the pool has no room to remember all, whatever the order of the requests."""
    games = puzzles(60)
    examples = ["".join(puzzle("S", n) for n in games[i : i + 15]) for i in (0, 15, 30, 45)]
    contexts = [shown + puzzle("S", n) for n in games[:10] for shown in examples]
    with Engine(MODEL, kv_tokens=kv_tokens) as engine:
        model = DendriteLM(engine)
        requests = [
            (None, model.tok_encode(context), model.tok_encode(answer, add_special_tokens=False))
            for answer in ("sure\n", "sure thing\n", "impossible\n", "impossibly\n")
            for context in contexts
        ]
        model._loglikelihood_tokens(requests, disable_tqdm=True)
        computed = model.session.stats().tokens_computed
    trie = {
        tuple(whole[:length])
        for _, context, continuation in requests
        for whole in [context + continuation]
        for length in range(1, len(whole))
    }
    assert computed <= 1.05 * len(trie)


def test_long_contexts_lose_their_beginning(engine_24: Engine) -> None:
    model = DendriteLM(engine_24, max_length=40)
    context = engine_24.encode("S 24: 1 2 3 4\n" * 8).tolist()
    continuation = engine_24.encode("ok\n", add_special=False).tolist()
    [cut] = model._loglikelihood_tokens([(None, context, continuation)], disable_tqdm=True)
    with engine_24.session() as session:
        kept = context[-(40 + 1 - len(continuation)) :]
        [expected] = session.prefill(kept).score([continuation])
    assert cut == (expected.logprob, expected.greedy)


@pytest.mark.parametrize("add_bos_token", [None, True, False])
def test_long_texts_are_scored_in_windows(engine_24: Engine, add_bos_token: bool | None) -> None:
    model = DendriteLM(engine_24, max_length=32, add_bos_token=add_bos_token)
    text = "S 24: 1 2 3 4\n" * 8
    [total] = model.loglikelihood_rolling(
        [instance("loglikelihood_rolling", text)], disable_tqdm=True
    )
    tokens = engine_24.encode(text, add_special=add_bos_token is not False).tolist()
    expected = 0.0
    with engine_24.session() as session:
        for begin in range(0, len(tokens), 32):
            end = min(begin + 32, len(tokens))
            context = tokens[max(0, end - 33) : begin] or [model.prefix_token_id]
            expected += session.prefill(context).score([tokens[begin:end]])[0].logprob
    assert len(tokens) > 64
    assert total == expected


def test_generating_depends_on_no_batch(engine_24: Engine) -> None:
    requests = [
        instance("generate_until", puzzle("S", numbers), {"until": stop, "max_gen_toks": 60})
        for numbers in puzzles(5)
        for stop in (["\n"], ["ok", "|"], "\n6", [])
    ]
    one, many = (
        DendriteLM(engine_24, batch_size=size).generate_until(requests, disable_tqdm=True)
        for size in (1, 8)
    )
    assert one == many
    assert all("\n" not in text for text in one[::4])
    assert all(text.endswith("ok\n") for text in one[3::4])


def test_sampling_follows_the_seed(engine_24: Engine) -> None:
    sampled = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 20, "until": []}
    requests = [instance("generate_until", "P 24: 4 5 6 10\n", sampled)] * 4
    first, again, other = (
        DendriteLM(engine_24, seed=seed).generate_until(requests, disable_tqdm=True)
        for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len(set(first)) > 1


def test_chats_go_through_the_models_template(engine_24: Engine, folder: Path) -> None:
    model = DendriteLM(engine_24)
    chat = [{"role": "user", "content": "10 4 6 5"}]
    prompt = model.apply_chat_template(chat)
    assert prompt == "<|bos|>S 24: 4 5 6 10\n"
    assert model.tok_encode(prompt) == model.tok_encode("S 24: 4 5 6 10\n")
    assert model.apply_chat_template(
        [*chat, {"role": "assistant", "content": "10-4=6 |"}], add_generation_prompt=False
    ) == ("<|bos|>S 24: 4 5 6 10\n10-4=6 |")
    assert "bos_token" in (model.chat_template(True) or "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_beams": 4}, "num_beams"),
        ({"max_gen_toks": 4096}, "expected less than 1024"),
    ],
)
def test_what_a_task_may_not_ask_is_an_error(
    engine_24: Engine, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(Error, match=message):
        DendriteLM(engine_24).generate_until(
            [instance("generate_until", "S 24: 4 5 6 10\n", arguments)], disable_tqdm=True
        )


def test_command_line(folder: Path, results: dict[str, Any]) -> None:
    out = folder / "out"
    offline.run(
        "dendrite.adapters.lm_eval", "run", "--model", "dendrite",
        "--model_args", f"pretrained={MODEL},threads=2", "--tasks", "judge,solve",
        "--include_path", str(folder), "--batch_size", "8", "--output_path", str(out),
    )  # fmt: skip
    [file] = out.rglob("results_*.json")
    written = json.loads(file.read_text())["results"]
    for task, metric in (("judge", "acc,none"), ("solve", "exact_match,none")):
        assert written[task][metric] == results["results"][task][metric]
