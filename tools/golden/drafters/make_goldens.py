"""Makes tests/data/drafters: block drafters of random weights for models of tests/data/models, and what they say.

python tools/golden/drafters/make_goldens.py [--check] [NAME...]   needs numpy alone, but for those of hybrids
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import tensors
from dflash import Reading, draft, streams

ROOT = Path(__file__).resolve().parents[3]
ANCHORS = [1, 20, 63, 64, 100]
TOLERANCE = 2e-5  # of the tests, in f32
CONTRASTS = {
    "norm_context": Reading(norm_context=True),
    "no_context_key_norm": Reading(context_key_norm=False),
    "shifted": Reading(shift=1),
    "causal": Reading(always_causal=True),
    "tap_before": Reading(tap_before=True),
    "no_windows": Reading(ignore_windows=True),
    "no_hidden_norm": Reading(hidden_norm=False),
}


@dataclasses.dataclass(frozen=True)
class Spec:
    name: str
    target: str
    config: dict[str, Any]
    taps: list[int]  # that the config means
    blind: tuple[str, ...]  # contrasts that it cannot tell
    bf16: bool = True


def config_of(**changes: Any) -> dict[str, Any]:
    return {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_act": "silu", **changes}


SPECS = [
    # All of the block sees itself; heads unlike the model's; the embedding is the output matrix.
    Spec("qwen3_full", "qwen3",
         config_of(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                   num_key_value_heads=2, head_dim=32, block_size=8, num_target_layers=2, rms_norm_eps=1e-6,
                   rope_theta=500000.0, dflash_config={"mask_token_id": 319, "target_layer_ids": [0, 1]}),
         [0, 1], ("no_windows",)),
    # Sliding layers, which are causal, and one that sees all; the output matrix is its own.
    Spec("tinyllama_sliding", "tinyllama",
         config_of(hidden_size=64, intermediate_size=80, num_hidden_layers=4, num_attention_heads=4,
                   num_key_value_heads=1, head_dim=16, num_target_layers=3, rms_norm_eps=1e-6,
                   rope_parameters={"rope_type": "default", "rope_theta": 10000000.0},
                   layer_types=["sliding_attention"] * 3 + ["full_attention"], sliding_window=24,
                   dflash_config={"block_size": 16, "mask_token_id": 310, "target_layer_ids": [0, 1, 2]}),
         [0, 1, 2], ()),
    # What is not written: which layers are tapped. Causal by the config, in f32.
    Spec("llama_causal", "llama_f32",
         config_of(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
                   num_key_value_heads=2, head_dim=16, block_size=5, num_target_layers=2, rms_norm_eps=1e-5,
                   is_causal=True, dflash_config={"mask_token_id": 271}),
         [1], ("causal", "no_windows"), bf16=False),
    # Of a hybrid: one tap behind full attention, one behind a delta network.
    Spec("qwen3_5_full", "qwen3_5_text",
         config_of(hidden_size=32, intermediate_size=40, num_hidden_layers=1, num_attention_heads=2,
                   num_key_value_heads=1, head_dim=16, block_size=4, num_target_layers=4, rms_norm_eps=1e-6,
                   rope_theta=500000.0, dflash_config={"mask_token_id": 271, "target_layer_ids": [1, 2]}),
         [1, 2], ("no_windows",)),
]  # fmt: skip


def random_weights(spec: Spec) -> dict[str, np.ndarray]:
    c = spec.config
    dim, ffn, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (dim, len(spec.taps) * dim), "hidden_norm.weight": (dim,), "norm.weight": (dim,)}  # fmt: skip
    for i in range(c["num_hidden_layers"]):
        for name, shape in {
            "input_layernorm": (dim,), "post_attention_layernorm": (dim,), "self_attn.q_proj": (q, dim),
            "self_attn.k_proj": (kv, dim), "self_attn.v_proj": (kv, dim), "self_attn.o_proj": (dim, q),
            "self_attn.q_norm": (d,), "self_attn.k_norm": (d,), "mlp.gate_proj": (ffn, dim),
            "mlp.up_proj": (ffn, dim), "mlp.down_proj": (dim, ffn)}.items():  # fmt: skip
            shapes[f"layers.{i}.{name}.weight"] = shape
    weights = {}
    for name, shape in sorted(shapes.items()):
        random = np.random.Generator(np.random.PCG64(zlib.crc32(f"{spec.name}/{name}".encode())))
        if len(shape) == 1:
            values = 1 + 0.3 * random.standard_normal(shape)
            if "q_norm" in name:
                values *= 2  # keys are told apart
        else:
            values = random.standard_normal(shape) * 1.5 / np.sqrt(shape[1])
        weights[name] = tensors.rounded(values) if spec.bf16 else values.astype(np.float32)
    return weights


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def make(spec: Spec) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    folder = ROOT / "tests/data/models" / spec.target
    target = json.loads((folder / "config.json").read_text())
    target_weights = tensors.read(folder / "model.safetensors")
    ids = tensors.read(folder / "golden.safetensors")["input_ids"]
    if "linear_attention" in target.get("layer_types", []):
        import hybrid  # torch and transformers, which the others do not need

        after = [rows.double().numpy() for rows in hybrid.streams(hybrid.load(folder), ids.tolist())]
    else:
        after = streams(ids, target, target_weights)
    weights = random_weights(spec)
    wide = {name: values.astype(np.float64) for name, values in weights.items()}
    config = {**spec.config, **{k: v for k, v in spec.config["dflash_config"].items() if k == "block_size"}}

    def logits(reading: Reading = Reading()) -> np.ndarray:
        return np.stack([draft(ids, n, after, target_weights, config, wide, spec.taps, reading) for n in ANCHORS])

    right = logits()
    contrasts = {name: distance(logits(reading), right) for name, reading in CONTRASTS.items()}
    for name, moved in contrasts.items():
        if (moved > 100 * TOLERANCE) == (name in spec.blind):
            raise SystemExit(f"{spec.name}: {name} moves the logits by {moved:.2g}")
    golden = {"input_ids": ids.astype(np.int32), "anchors": np.array(ANCHORS, np.int32), "logits": right}
    facts = {"format": 1, "name": spec.name, "target": spec.target, "taps": spec.taps,
             "logits_std": float(f"{right.std():.6g}"),
             "contrasts": {name: float(f"{moved:.6g}") for name, moved in contrasts.items()}}  # fmt: skip
    return weights, golden, facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is there")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of drafters; default: all")
    args = parser.parse_args()
    for spec in SPECS:
        if args.names and spec.name not in args.names:
            continue
        out = ROOT / "tests/data/drafters" / spec.name
        weights, golden, facts = make(spec)
        if args.check:
            there = tensors.read(out / "golden.safetensors")["logits"]
            print(spec.name, "differs by", distance(golden["logits"], there))
            if distance(golden["logits"], there) > 1e-6:
                raise SystemExit(1)
            continue
        out.mkdir(parents=True, exist_ok=True)
        (out / "config.json").write_text(json.dumps(spec.config, indent=1) + "\n")
        (out / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")
        tensors.write(out / "model.safetensors", weights, bf16=spec.bf16)
        tensors.write(out / "golden.safetensors", golden)
        print(json.dumps(facts))


if __name__ == "__main__":
    main()
