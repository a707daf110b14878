"""Random weights that show bugs.

transformers' own initialisation (std 0.02) gives near-uniform logits and hides mistakes. Here linear layers are
N(0, 1/fan_in), norm weights U(0.5, 1.5), biases N(0, 0.2), embeddings N(0, 0.5) with a few outlier channels ten
times as large, as trained models have them. Norm weights damp these channels (trained models do that too), so
that they do not decide everything. Experts of a layer are much alike: half precision now and then chooses another one
than f32, which would else be anywhere. Hybrids and Gemma store norm weights less 1. Numbers come from numpy's PCG64,
one stream per tensor, so that they are the same on every machine and a new tensor does not shift the others.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch


CORRECTIONS = ("e_score_correction_bias", "expert_bias")  # of choices of experts


def stream(model: str, tensor: str) -> np.random.Generator:
    """`model` is the model's name, with the spec's seed where that is not zero."""
    return np.random.Generator(np.random.PCG64([zlib.crc32(model.encode()), zlib.crc32(tensor.encode())]))


def outliers(hidden: int) -> list[int]:
    count = 4 if hidden >= 64 else 2
    return [(3 + 17 * k) % hidden for k in range(count)]


def weight(model: str, name: str, shape: tuple[int, ...], hidden: int, tied: bool) -> np.ndarray:
    rng = stream(model, name)
    if any(part in name for part in ("visual", "vision_tower", "vision_model", "multi_modal")):  # which no text meets
        return rng.normal(0, 0.1, shape)
    if name.endswith(CORRECTIONS):  # large enough to change choices among sigmoids
        return rng.normal(0, 0.4, shape)
    if name.endswith("bias"):
        return rng.normal(0, 0.2, shape)
    if name.endswith("sinks"):
        return rng.normal(2.0, 1.5, shape)
    if name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
        return rng.uniform(0.6, 1.4, shape)
    if "embed_tokens_per_layer" in name:
        return rng.normal(0, 0.5, shape)
    if "embed_tokens" in name or "embeddings" in name:
        w = rng.normal(0, 0.5, shape)
        w[:, outliers(hidden)] *= 10
        return w
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.05, 1.0, shape))
    if "conv1d" in name or "conv.conv" in name:
        return rng.normal(0, 0.6, shape)
    if "lm_head" in name:
        return rng.normal(0, 2.6 * shape[1] ** -0.5, shape)
    if "norm" in name:
        w = rng.uniform(0.5, 1.5, shape)
        if any(part in name for part in ("q_norm", "k_norm", "q_layernorm", "k_layernorm")):
            return w * 1.2
        last = name.endswith(("model.norm.weight", "embedding_norm.weight", "norm_f.weight"))
        if "linear_attn.norm" in name or "_a_layernorm" in name:
            return w
        if shape[0] == hidden:
            w[outliers(hidden)] *= 0.05 if last else 0.2
        if last and tied:  # without this a tied model repeats its last token for ever
            w *= rng.choice([-1.0, 1.0], shape) * 5.2 * hidden**-0.5
        return w
    gain = 2.0
    w = rng.normal(0, gain * shape[-1] ** -0.5, shape)
    if len(shape) == 3:  # experts
        w = 0.3 * w + 0.95 * rng.normal(0, gain * shape[-1] ** -0.5, shape[1:])
    return w


@torch.no_grad()
def fill(model: torch.nn.Module, name: str, dtype: torch.dtype, f32: tuple[str, ...] = ()) -> None:
    """Sets and casts parameters and biases of routers only: casting the whole model would round the inv_freq buffer.

    `f32`: what stands in names of those that stay f32, beside what transformers keeps so.
    """
    config = model.config.get_text_config()
    hidden = config.hidden_size
    less_one = config.model_type.startswith(("qwen3_5", "qwen3_next", "gemma2", "gemma3"))
    biases = [(key, b) for key, b in model.named_buffers() if key.endswith((*CORRECTIONS, "layer_scalar"))]
    for key, p in (*model.named_parameters(), *biases):
        turned = config.model_type in ("gpt_oss", "llama4_text") and p.dim() == 3  # [experts, in, out]
        shape = tuple(p.mT.shape if turned else p.shape)
        w = weight(name, key, shape, hidden, config.tie_word_embeddings)
        if turned:
            w = w.swapaxes(1, 2)
        if config.model_type.startswith("gemma"):  # which scales what it looks up
            w *= hidden**-0.5 if "embed_tokens.weight" in key else hidden**0.5 if key.endswith("model.norm.weight") else 1
        if config.model_type.startswith("gemma4") and ("q_norm" in key or "k_norm" in key):  # scores are not divided
            w *= 0.4
        if less_one and "norm" in key and "linear_attn.norm" not in key:
            w = w - 1
        keep = any(part in key for part in (*f32, *model._keep_in_fp32_modules_strict))
        p.data = torch.from_numpy(np.ascontiguousarray(w, np.float32)).to(torch.float32 if keep else dtype)


def input_ids(model: str, length: int, limit: int) -> list[int]:
    """A fixed sequence: BOS (1), then ids drawn uniformly."""
    rng = stream(model, "input_ids")
    return [1] + [int(i) for i in rng.integers(3, limit, length - 1)]
