"""DFlash (arXiv 2602.06036) in numpy, float64, from its formulas: the models without recurrent layers that it reads along with, and the drafter.

One text, one block; nothing is cached. `Reading` has the mistakes that a reader of the formulas can make; each is a
contrast that the goldens must tell from the right reading.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

Weights = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Reading:
    """How the formulas are read; the defaults are right."""

    norm_context: bool = False  # input_layernorm on context, too
    context_key_norm: bool = True
    shift: int = 0  # of the block's positions
    always_causal: bool = False
    tap_before: bool = False  # the stream before a tapped layer, not after it
    ignore_windows: bool = False
    hidden_norm: bool = True


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x: np.ndarray, positions: np.ndarray, theta: float) -> np.ndarray:
    """x [rows, heads, head_dim]: pairs (i, i + head_dim / 2)."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-np.arange(half) / half)
    angles = positions[:, None, None] * frequencies
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """q [rows, heads, d], k and v [keys, kv_heads, d], visible [rows, keys]; [rows, heads * d]."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("rhd,khd->hrk", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(visible[None], scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    return np.einsum("hrk,khd->rhd", scores, v).reshape(q.shape[0], -1)


def mlp(x: np.ndarray, w: Weights, name: str) -> np.ndarray:
    gate = x @ w[name + "mlp.gate_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * (x @ w[name + "mlp.up_proj.weight"].T)) @ w[name + "mlp.down_proj.weight"].T


def theta_of(config: dict[str, Any]) -> float:
    rope = config.get("rope_parameters") or {}
    return float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))


def head_dim_of(config: dict[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def heads(x: np.ndarray, weight: np.ndarray, head_dim: int) -> np.ndarray:
    return (x @ weight.T).reshape(x.shape[0], -1, head_dim)


def streams(ids: np.ndarray, config: dict[str, Any], w: Weights) -> list[np.ndarray]:
    """The model's residual stream [tokens, dim] before its first layer, then after each. Llama, and Qwen3 with its norms."""
    d, eps, theta = head_dim_of(config), config["rms_norm_eps"], theta_of(config)
    x = w["model.embed_tokens.weight"][ids]
    positions = np.arange(len(ids))
    visible = positions[:, None] >= positions[None]
    out = [x]
    for i in range(config["num_hidden_layers"]):
        name = f"model.layers.{i}."
        y = rms_norm(x, w[name + "input_layernorm.weight"], eps)
        q, k, v = (heads(y, w[f"{name}self_attn.{part}_proj.weight"], d) for part in "qkv")
        if name + "self_attn.q_norm.weight" in w:
            q = rms_norm(q, w[name + "self_attn.q_norm.weight"], eps)
            k = rms_norm(k, w[name + "self_attn.k_norm.weight"], eps)
        q, k = rotate(q, positions, theta), rotate(k, positions, theta)
        x = x + attend(q, k, v, visible) @ w[name + "self_attn.o_proj.weight"].T
        x = x + mlp(rms_norm(x, w[name + "post_attention_layernorm.weight"], eps), w, name)
        out.append(x)
    return out


def visible_to(block: np.ndarray, keys: np.ndarray, causal: bool, window: int) -> np.ndarray:
    ahead = block[:, None] - keys[None]
    seen = ahead >= 0 if causal else np.ones_like(ahead, dtype=bool)
    return seen & (np.abs(ahead) < window) if window > 0 else seen


def draft(
    ids: np.ndarray,
    anchor: int,
    after: list[np.ndarray],
    target_weights: Weights,
    config: dict[str, Any],
    w: Weights,
    taps: list[int],
    reading: Reading = Reading(),
) -> np.ndarray:
    """Logits [block_size - 1, vocab] of the masks after ids[anchor], whose context is ids[:anchor]. `after`: the model's
    streams of all ids."""
    eps, d, theta = config["rms_norm_eps"], head_dim_of(config), theta_of(config)
    tapped = [after[tap + (0 if reading.tap_before else 1)] for tap in taps]
    features = np.concatenate([stream[:anchor] for stream in tapped], axis=-1)
    context = features @ w["fc.weight"].T
    if reading.hidden_norm:
        context = rms_norm(context, w["hidden_norm.weight"], eps)
    size = config["block_size"]
    mask = config["dflash_config"]["mask_token_id"]
    x = target_weights["model.embed_tokens.weight"][[ids[anchor]] + [mask] * (size - 1)]
    before = np.arange(anchor)
    block = np.arange(anchor, anchor + size) + reading.shift
    keys = np.concatenate([before, block])
    for i in range(config["num_hidden_layers"]):
        name = f"layers.{i}."
        norm = w[name + "input_layernorm.weight"]
        y = rms_norm(x, norm, eps)
        c = rms_norm(context, norm, eps) if reading.norm_context else context
        q, k, v = (heads(y, w[f"{name}self_attn.{part}_proj.weight"], d) for part in "qkv")
        ck, cv = (heads(c, w[f"{name}self_attn.{part}_proj.weight"], d) for part in "kv")
        q = rms_norm(q, w[name + "self_attn.q_norm.weight"], eps)
        k = rms_norm(k, w[name + "self_attn.k_norm.weight"], eps)
        if reading.context_key_norm:
            ck = rms_norm(ck, w[name + "self_attn.k_norm.weight"], eps)
        q = rotate(q, block, theta)
        k = rotate(np.concatenate([ck, k]), keys, theta)
        slides = config.get("layer_types", ["full_attention"] * (i + 1))[i] == "sliding_attention"
        causal = reading.always_causal or config.get("is_causal", slides)
        window = config["sliding_window"] if slides and not reading.ignore_windows else 0
        seen = visible_to(block, keys, causal, window)
        x = x + attend(q, k, np.concatenate([cv, v]), seen) @ w[name + "self_attn.o_proj.weight"].T
        x = x + mlp(rms_norm(x, w[name + "post_attention_layernorm.weight"], eps), w, name)
    x = rms_norm(x[1:], w["norm.weight"], eps)
    output = target_weights.get("lm_head.weight", target_weights["model.embed_tokens.weight"])
    return x @ output.T
