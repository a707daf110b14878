"""Runs transformers and measures: logits, hidden states, greedy continuations.

f32 runs use eager attention on one thread. A model is always loaded with `from_pretrained(dtype=...)`, never cast
with `.to()`, which would round the RoPE frequencies.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any, Iterator

import torch
import transformers
from transformers import AutoModelForCausalLM

transformers.logging.set_verbosity_error()
logging.getLogger("transformers").setLevel(logging.ERROR)
with contextlib.suppress(Exception):
    transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
torch.backends.cuda.matmul.allow_tf32 = False


def load(folder: Path, dtype: torch.dtype = torch.float32, attention: str = "eager") -> torch.nn.Module:
    # Mixtures: expert by expert, not by a product of all.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention,
                                                 experts_implementation="eager")
    return model.eval()


@torch.no_grad()
def logits(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """[tokens, vocab], in the dtype the model computes."""
    return model(torch.tensor([ids]), use_cache=False).logits[0]


@torch.no_grad()
def hidden_states(model: torch.nn.Module, ids: list[int], positions: list[int]) -> torch.Tensor:
    """[layers + 2, positions, hidden]: embedding, the residual stream after each layer, the final norm's output.

    (transformers' own output_hidden_states leaves out the last layer's output before the norm.)
    """
    taken: list[torch.Tensor] = []

    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        taken.append((output[0] if isinstance(output, tuple) else output)[0, positions].clone())

    inner = model.model
    handles = [m.register_forward_hook(hook) for m in (inner.embed_tokens, *inner.layers, inner.norm)]
    model(torch.tensor([ids]), use_cache=False)
    for h in handles:
        h.remove()
    return torch.stack(taken)


@torch.no_grad()
def last_hidden_state(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """[tokens, hidden], f32: the final norm's output, which vectors of texts are made of."""
    return model.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0].float()


@torch.no_grad()
def greedy(model: torch.nn.Module, prompt: list[int], steps: int, top: int = 5,
           limit: int | None = None) -> dict[str, torch.Tensor]:
    """Greedy continuation, which ignores EOS, with the gap between the two best logits at each step.

    With `limit` only ids below it are chosen; log-probs stay those of the whole vocabulary.
    """
    ids, gaps, chosen, top_ids, top_logits = [], [], [], [], []
    tokens, cache = torch.tensor([prompt]), None
    for _ in range(steps):
        out = model(tokens, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        row = out.logits[0, -1].float()
        best = torch.topk(row[:limit], max(top, 2))
        log_probs = torch.log_softmax(row.double(), -1)
        token = int(row[:limit].argmax())  # the lowest id among equals
        ids.append(token)
        gaps.append(float(best.values[0] - best.values[1]))
        chosen.append(float(log_probs[token]))
        top_ids.append(best.indices[:top])
        top_logits.append(row)
        tokens = torch.tensor([[token]])
    rows = torch.stack(top_logits)
    order = torch.stack(top_ids)
    return {
        "ids": torch.tensor(ids, dtype=torch.int32),
        "gap": torch.tensor(gaps),
        "logprob": torch.tensor(chosen),
        "top_ids": order.to(torch.int32),
        "top_logprob": torch.log_softmax(rows.double(), -1).gather(1, order).float(),
        "top_logprob_t07": torch.log_softmax(rows.double() / 0.7, -1).gather(1, order).float(),
    }


def check_greedy(model: torch.nn.Module, prompt: list[int], run: dict[str, torch.Tensor]) -> None:
    """One forward over everything must choose the same tokens: the cache played no trick."""
    ids = run["ids"].tolist()
    rows = logits(model, prompt + ids[:-1])[len(prompt) - 1:]
    bad = [i for i, (row, t) in enumerate(zip(rows, ids)) if float(row.max() - row[t]) > 1e-3]
    assert not bad, f"cached and uncached greedy differ at steps {bad[:5]}"


def relative_error(a: torch.Tensor, b: torch.Tensor) -> float:
    """L2 error of a against b, relative to b."""
    a, b = a.double(), b.double()
    return float((a - b).norm() / b.norm())


@contextlib.contextmanager
def edited_copy(folder: Path, config: dict[str, Any]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as tmp:
        copy = Path(tmp) / "model"
        shutil.copytree(folder, copy)
        path = copy / "config.json"
        whole = json.loads(path.read_text())
        c = whole.get("text_config", whole)
        for key, value in config.items():
            c[key] = value
            if value is None and key != "sliding_window":
                del c[key]
        path.write_text(json.dumps(whole))
        yield copy


@torch.no_grad()
def load_contrast(folder: Path, wrong: dict[str, Any]) -> torch.nn.Module:
    """The model as a mistaken reader would see it (specs.py says which mistakes exist)."""
    with edited_copy(folder, wrong.get("config", {})) as copy:
        model = load(copy)
    for name, p in model.named_parameters():
        if "zero" in wrong and name.endswith(wrong["zero"]):
            p.zero_()
        if any(part in name for part in wrong.get("ones", [])):
            p.fill_(1.0)
        for part, by in wrong.get("shift", {}).items():
            if part in name:
                p.add_(by)
        if "flip" in wrong and name.endswith(wrong["flip"]):
            p.copy_(p.flip(-1))
        if "swap" in wrong and name.endswith(wrong["swap"]):
            p.copy_(torch.cat(p.chunk(2, dim=1)[::-1], dim=1))
        if "split" in wrong and name.endswith(wrong["split"]):
            p.copy_(packed_by_key_head(p, model.config))
        if "roll" in wrong and name.endswith(wrong["roll"]):
            p.copy_(p.roll(1, 0))
        if "halves" in wrong and name.endswith(wrong["halves"]):
            heads, dim = model.config.num_attention_heads, model.config.head_dim
            p.copy_(p.reshape(2, heads, dim, -1).transpose(0, 1).reshape(p.shape))
        if "turns" in wrong and "linear_attn" in name:
            p.copy_(value_heads_in_turns(name, p, model.config))
        if "round" in wrong:
            p.copy_(p.to({"bf16": torch.bfloat16, "f16": torch.float16}[wrong["round"]]).float())
    if "inv_freq" in wrong:
        # what the file holds: the unscaled frequencies, rounded
        d = model.config.head_dim
        model.model.rotary_emb.inv_freq = file_inv_freq(d)
    if wrong.get("tie"):
        model.lm_head.weight = model.model.embed_tokens.weight
    return model


def value_heads_in_turns(name: str, p: torch.Tensor, c: Any) -> torch.Tensor:
    """A delta network's parameter as if value head j went by key head j % key_heads: all that is a value head's moves
    to where heads of that key are."""
    keys, values = c.linear_num_key_heads, c.linear_num_value_heads
    order = torch.arange(values).reshape(-1, keys).T.reshape(-1)
    if name.endswith("out_proj.weight"):
        return p.reshape(p.shape[0], values, -1)[:, order].reshape(p.shape)
    if name.endswith("norm.weight"):
        return p
    before = 2 * keys * c.linear_key_head_dim if name.endswith(("in_proj_qkv.weight", "conv1d.weight")) else 0
    moved = p[before:].reshape(values, -1, *p.shape[1:])[order].reshape(p[before:].shape)
    return torch.cat([p[:before], moved])


def packed_by_key_head(p: torch.Tensor, c: Any) -> torch.Tensor:
    """Rows that are all queries, then all keys, values and gates, as in_proj_qkvz has them."""
    heads = c.linear_num_key_heads
    values = c.linear_num_value_heads // heads * c.linear_value_head_dim
    sizes = [c.linear_key_head_dim, c.linear_key_head_dim, values, values]
    parts = p.split([heads * size for size in sizes])
    return torch.cat([part.reshape(heads, -1, p.shape[1]) for part in parts], dim=1).reshape(p.shape)


def file_inv_freq(head_dim: int) -> torch.Tensor:
    return (1.0 / (10000.0 ** (torch.arange(0, head_dim, 2).float() / head_dim))).to(torch.bfloat16).float()
