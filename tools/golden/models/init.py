"""Random weights that show bugs.

transformers' own initialisation (std 0.02) gives near-uniform logits and hides mistakes. Here linear layers are
N(0, 1/fan_in), norm weights U(0.5, 1.5), biases N(0, 0.2), embeddings N(0, 0.5) with a few outlier channels ten
times as large, as trained models have them. Norm weights damp these channels (trained models do that too), so
that they do not decide everything. Numbers come from numpy's PCG64, one stream per tensor, so that they are the
same on every machine and a new tensor does not shift the others.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch


def stream(model: str, tensor: str) -> np.random.Generator:
    """`model` is the model's name, with the spec's seed where that is not zero."""
    return np.random.Generator(np.random.PCG64([zlib.crc32(model.encode()), zlib.crc32(tensor.encode())]))


def outliers(hidden: int) -> list[int]:
    count = 4 if hidden >= 64 else 2
    return [(3 + 17 * k) % hidden for k in range(count)]


def weight(model: str, name: str, shape: tuple[int, ...], hidden: int, tied: bool) -> np.ndarray:
    rng = stream(model, name)
    if name.endswith("bias"):
        return rng.normal(0, 0.2, shape)
    if "embed_tokens" in name:
        w = rng.normal(0, 0.5, shape)
        w[:, outliers(hidden)] *= 10
        return w
    if "lm_head" in name:
        return rng.normal(0, 2.6 * shape[1] ** -0.5, shape)
    if "norm" in name:
        w = rng.uniform(0.5, 1.5, shape)
        if "q_norm" in name or "k_norm" in name:
            return w * 1.2
        last = name.endswith("model.norm.weight")
        w[outliers(hidden)] *= 0.05 if last else 0.2
        if last and tied:  # without this a tied model repeats its last token for ever
            w *= rng.choice([-1.0, 1.0], shape) * 5.2 * hidden**-0.5
        return w
    gain = 2.0
    return rng.normal(0, gain * shape[1] ** -0.5, shape)


@torch.no_grad()
def fill(model: torch.nn.Module, name: str, dtype: torch.dtype, f32_norms: bool) -> None:
    """Sets and casts parameters only: casting the whole model would round the inv_freq buffer."""
    config = model.config
    for key, p in model.named_parameters():
        w = weight(name, key, tuple(p.shape), config.hidden_size, config.tie_word_embeddings)
        keep = f32_norms and "norm" in key
        p.data = torch.from_numpy(w.astype(np.float32)).to(torch.float32 if keep else dtype)


def input_ids(model: str, length: int, limit: int) -> list[int]:
    """A fixed sequence: BOS (1), then ids drawn uniformly."""
    rng = stream(model, "input_ids")
    return [1] + [int(i) for i in rng.integers(3, limit, length - 1)]
