"""Makes tests/data/drafters/*_mtp: MTP heads of random weights for hybrids of tests/data/models, and what they say.

python tools/golden/drafters/make_mtp_goldens.py [--check]   needs what tools/golden/requirements.txt lists

transformers leaves tensors mtp.* out, so the head is put together here of its modules: norms, a linear layer, and one
decoder layer with full attention of the model's own class. A text's first token has no hidden state before it: its row
is zeros (MtpHead). Drafts go on with the likeliest token and what the head's last norm gives.
"""

from __future__ import annotations

import argparse
import copy
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hybrid
import tensors

ROOT = Path(__file__).resolve().parents[3]

TARGETS = ["qwen3_5_text", "qwen3_5_moe_text"]
ANCHORS = [1, 2, 16, 17, 33, 63, 100]  # positions of last tokens
TOKENS = 3  # of a draft
TOLERANCE = 2e-5  # of the tests, in f32
CONTRASTS = ["swapped", "before_norm", "hidden_of_same", "first_row", "shifted_positions", "own_before_norm"]


class Head(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        inner = model.model
        full = [layer for layer in inner.layers if hasattr(layer, "self_attn")][-1]
        dim = model.config.hidden_size
        self.pre_fc_norm_embedding = copy.deepcopy(inner.norm)
        self.pre_fc_norm_hidden = copy.deepcopy(inner.norm)
        self.fc = torch.nn.Linear(2 * dim, dim, bias=False)
        self.layers = torch.nn.ModuleList([copy.deepcopy(full)])
        self.norm = copy.deepcopy(inner.norm)


def fill(head: Head, name: str) -> dict[str, np.ndarray]:
    """Random weights, in bf16; norms are stored less 1."""
    weights = {}
    for key, parameter in head.named_parameters():
        random = np.random.Generator(np.random.PCG64(zlib.crc32(f"{name}/{key}".encode())))
        shape = tuple(parameter.shape)
        if "norm" in key:
            values = random.uniform(-0.5, 0.5, shape)
            values += 0.8 if "q_norm" in key or "k_norm" in key else 0  # keys are told apart
        elif key.endswith("bias"):
            values = random.normal(0, 0.2, shape)
        else:
            values = random.normal(0, 1.6, shape) / np.sqrt(shape[-1])
        weights["mtp." + key] = tensors.rounded(values)
        parameter.data = torch.tensor(weights["mtp." + key])
    return weights


@torch.no_grad()
def hidden_states(model: torch.nn.Module, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Before the final norm, and behind it: [tokens, dim]."""
    before = hybrid.streams(model, ids)[-1]
    return before, model.model.norm(before)


@torch.no_grad()
def run(model: torch.nn.Module, head: Head, ids: list[int], states: tuple[torch.Tensor, torch.Tensor],
        reading: str = "") -> tuple[torch.Tensor, list[int]]:  # fmt: skip
    """Logits [TOKENS, vocab] after the ids, the last of which the model has not seen, and the likeliest tokens."""
    hidden = states[0 if reading == "before_norm" else 1][: len(ids)]
    if reading != "hidden_of_same":
        hidden = hidden[:-1]
    rows = torch.tensor(ids)
    logits, drafted = [], []
    for _ in range(TOKENS):
        embedded = head.pre_fc_norm_embedding(model.model.embed_tokens(rows))
        known = hidden if reading == "hidden_of_same" else torch.cat([torch.zeros_like(hidden[:1]), hidden])
        pair = [embedded, head.pre_fc_norm_hidden(known[: len(rows)])]
        x = head.fc(torch.cat(pair[::-1] if reading == "swapped" else pair, -1))
        if reading != "first_row":
            x[0] = 0
        positions = torch.arange(len(rows))
        if reading == "shifted_positions":
            positions = torch.where(positions == len(rows) - 1, positions + 1, positions)
        cos_sin = model.model.rotary_emb(x[None], positions.view(1, 1, -1).expand(3, 1, -1))
        mask = torch.full((len(rows), len(rows)), torch.finfo(torch.float32).min).triu(1)[None, None]
        raw = head.layers[0](x[None], position_embeddings=cos_sin, attention_mask=mask)[0]
        out = head.norm(raw)
        logits.append(model.lm_head(out[-1]))
        drafted.append(int(logits[-1].argmax()))
        rows = torch.cat([rows, torch.tensor(drafted[-1:])])
        last = raw[-1:] if reading == "own_before_norm" else out[-1:]
        hidden = torch.cat([hidden, last])
    return torch.stack(logits), drafted


def make(target: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    folder = ROOT / "tests/data/models" / target
    model = hybrid.load(folder)
    ids = tensors.read(folder / "golden.safetensors")["input_ids"].tolist()
    states = hidden_states(model, ids[: ANCHORS[-1] + 1])
    head = Head(model)
    weights = fill(head, target + "_mtp")

    def all_of(reading: str = "") -> tuple[np.ndarray, np.ndarray]:
        outs = [run(model, head, ids[: anchor + 1], states, reading) for anchor in ANCHORS]
        return np.stack([out[0].numpy() for out in outs]), np.array([out[1] for out in outs], np.int32)

    right, drafted = all_of()
    contrasts = {reading: float(np.linalg.norm(all_of(reading)[0][:, 0] - right[:, 0]) / np.linalg.norm(right[:, 0]))
                 for reading in CONTRASTS if reading != "own_before_norm"}  # fmt: skip
    wrong = all_of("own_before_norm")[0]
    contrasts["own_before_norm"] = float(np.linalg.norm(wrong[:, 1:] - right[:, 1:]) / np.linalg.norm(right[:, 1:]))
    for reading, moved in contrasts.items():
        if moved < 100 * TOLERANCE:
            raise SystemExit(f"{target}: {reading} moves the logits by {moved:.2g}")
    golden = {"input_ids": np.array(ids, np.int32), "anchors": np.array(ANCHORS, np.int32), "logits": right,
              "drafted": drafted}  # fmt: skip
    facts = {"format": 1, "name": target + "_mtp", "target": target, "logits_std": float(f"{right.std():.6g}"),
             "contrasts": {name: float(f"{moved:.6g}") for name, moved in contrasts.items()}}  # fmt: skip
    return weights, golden, facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is there")
    check = parser.parse_args().check
    for target in TARGETS:
        out = ROOT / "tests/data/drafters" / (target + "_mtp")
        weights, golden, facts = make(target)
        if check:
            there = tensors.read(out / "golden.safetensors")["logits"]
            off = float(np.linalg.norm(golden["logits"] - there) / np.linalg.norm(there))
            print(target, "differs by", off)
            if off > 1e-6:
                raise SystemExit(1)
            continue
        out.mkdir(parents=True, exist_ok=True)
        (out / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")
        tensors.write(out / "model.safetensors", weights, bf16=True)
        tensors.write(out / "golden.safetensors", golden)
        print(json.dumps(facts))


if __name__ == "__main__":
    main()
