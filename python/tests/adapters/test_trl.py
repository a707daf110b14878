"""dendrite.adapters.trl: against what TRL documents of a rollout function, and, where TRL and torch
are installed (no test of ours installs torch), inside a GRPOTrainer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dendrite
from dendrite.adapters.trl import Rollout

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "models" / "dendrite-24"
PROMPTS = ["S 24: 4 5 6 10\n"] * 4 + ["S 24: 1 2 3 4\n"] * 4


@pytest.fixture(scope="module")
def engine():
    with dendrite.Engine(MODEL, dtype="f32", kv_tokens=1 << 14) as engine:
        yield engine


def trainer(**changes):
    """What the adapter reads of a GRPOTrainer 1.16."""
    fields = {
        "max_completion_length": 24,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": None,
        "repetition_penalty": 1.0,
        "tools": [],
        "chat_template_kwargs": {},
        "args": SimpleNamespace(seed=42),
        "state": SimpleNamespace(global_step=0),
        "accelerator": SimpleNamespace(process_index=0),
    }
    return SimpleNamespace(**(fields | changes))


def check(engine, out, prompts):
    """The contract: lists of the same length, one a prompt, a log-prob each of its tokens."""
    assert set(out) == {"prompt_ids", "completion_ids", "logprobs"}
    for i, prompt in enumerate(prompts):
        assert out["prompt_ids"][i] == engine.encode(prompt).tolist()
        ids = out["completion_ids"][i]
        assert ids and len(ids) == len(out["logprobs"][i])
        assert all(type(id) is int for id in ids)
        assert all(type(value) is float and value <= 0 for value in out["logprobs"][i])


def test_each_prompt_gets_completions_of_its_own(engine):
    rollout = Rollout(engine)
    first, second = rollout(PROMPTS, trainer()), rollout(PROMPTS, trainer())
    check(engine, first, PROMPTS)
    assert len({tuple(ids) for ids in first["completion_ids"][:4]}) > 1
    assert first["completion_ids"] != second["completion_ids"]  # asked again, drawn afresh
    again = Rollout(engine)(PROMPTS, trainer())
    assert again == first
    other = Rollout(engine)(PROMPTS, trainer(accelerator=SimpleNamespace(process_index=1)))
    assert other["completion_ids"] != first["completion_ids"]


def test_completions_are_in_one_batch_and_their_pages_return(engine):
    rollout = Rollout(engine)
    rollout(PROMPTS, trainer())
    stats = rollout._session.stats()
    assert stats.kv_bytes_naive > stats.kv_bytes_unique
    assert stats.largest_batch_rows >= len(PROMPTS)
    assert stats.branches_live == 0


def test_log_probs_are_of_the_trainers_temperature(engine):
    out = Rollout(engine)(PROMPTS, trainer(temperature=0.7))
    with engine.session() as session:
        for prompt, ids, logprobs in zip(*[out[name] for name in out], strict=True):
            branch = session.prefill(prompt)
            for id, logprob in zip(ids, logprobs, strict=True):
                logits = branch.distribution().logits.astype(np.float64) / 0.7
                expected = logits[id] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
                assert logprob == pytest.approx(expected, abs=1e-5)
                branch.append([id])


def test_a_search_makes_the_completions(engine):
    def search(session, root, count):
        root = root.fork()
        session.decode(root, max_tokens=3)  # a common first thought
        kids = root.fork(count)
        session.decode(kids, max_tokens=8, temperature=1.0, ignore_eos=True)
        return kids

    out = Rollout(engine, search=search)(PROMPTS, trainer())
    check(engine, out, PROMPTS)
    assert len({tuple(ids[:3]) for ids in out["completion_ids"][:4]}) == 1
    with pytest.raises(dendrite.Error, match="returned 3 branches; expected 4"):
        Rollout(engine, search=lambda session, root, count: root.fork(3))(PROMPTS, trainer())
    with pytest.raises(dendrite.Error, match="no token after its prompt"):
        Rollout(engine, search=lambda session, root, count: root.fork(count))(PROMPTS, trainer())


def test_chats_are_rendered_by_the_models_template(engine):
    chat = [{"role": "user", "content": "4 5 6 10"}]
    out = Rollout(engine, max_tokens=4)([chat, chat], trainer())
    expected = engine.encode(engine.render_chat(chat), add_special=False).tolist()
    assert out["prompt_ids"] == [expected, expected]
    with pytest.raises(dendrite.Error, match="the trainer has tools; expected none"):
        Rollout(engine)([chat], trainer(tools=[print]))


def test_a_trainer_of_trl_takes_the_rollouts(engine, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("trl")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    outputs = []

    class Recorded(Rollout):
        def __call__(self, prompts, trainer):
            outputs.append(super().__call__(prompts, trainer))
            return outputs[-1]

    trainer = GRPOTrainer(
        str(MODEL),
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        args=GRPOConfig(
            output_dir=str(tmp_path),
            num_generations=4,
            per_device_train_batch_size=8,
            max_completion_length=24,
            max_steps=2,
            use_cpu=True,
            bf16=False,
            report_to=[],
            model_init_kwargs={"dtype": "float32"},
        ),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS[::4] * 2]),
        rollout_func=Recorded(engine),
    )
    model = trainer.model
    trainer.train()
    assert len(outputs) == 2
    first = outputs[0]
    assert all(len(several) == 8 for several in first.values())
    # At the first step the trainer's model is the engine's: its log-probs are ours.
    fresh = type(model).from_pretrained(MODEL, dtype=torch.float32)
    for prompt, ids, ours in zip(*[first[name] for name in first], strict=True):
        with torch.no_grad():
            logits = fresh(torch.tensor([prompt + ids])).logits[0]
        theirs = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
        theirs = theirs[range(len(ids)), ids].tolist()
        assert ours == pytest.approx(theirs, abs=1e-3)
