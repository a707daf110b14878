"""Hybrids as transformers has them: what block drafters and MTP heads read along with."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
from reference import load  # noqa: E402, F401


@torch.no_grad()
def streams(model: torch.nn.Module, ids: list[int]) -> list[torch.Tensor]:
    """The residual stream [tokens, dim] before the first layer, then after each. Token by token: transformers' sums over
    64 tokens of a delta network at once are off by some 1e-5 in f32."""
    layers = model.model.layers
    taken: list[list[torch.Tensor]] = [[] for _ in range(len(layers) + 1)]

    def keep(at: int):
        return lambda _module, inputs: taken[at].append(inputs[0][0])

    hooks = [module.register_forward_pre_hook(keep(at)) for at, module in enumerate([*layers, model.model.norm])]
    cache = None
    for token in ids:
        cache = model.model(torch.tensor([[token]]), past_key_values=cache, use_cache=True).past_key_values
    for hook in hooks:
        hook.remove()
    return [torch.cat(rows) for rows in taken]
