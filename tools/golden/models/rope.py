"""RoPE tables from transformers, for every scaling type and parameter set the engine reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import reference as ref
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from writer import versions, write_json

COS_SIN_POSITIONS = [0, 1, 130, 8191, 100003]


def llama3(factor: float, original: int = 8192, low: float = 1.0, high: float = 4.0) -> dict[str, Any]:
    return {"rope_type": "llama3", "rope_theta": 500000.0, "factor": factor, "low_freq_factor": low,
            "high_freq_factor": high, "original_max_position_embeddings": original}


def yarn(factor: float, original: int = 32768, theta: float = 1e6, **more: Any) -> dict[str, Any]:
    return {"rope_type": "yarn", "rope_theta": theta, "factor": factor,
            "original_max_position_embeddings": original, **more}


def plain(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


# name, head_dim, max_position_embeddings, rope_parameters
CASES: list[tuple[str, int, int, dict[str, Any]]] = [
    ("default_d8", 8, 2048, plain(1e4)),
    ("default_d24", 24, 2048, plain(1e4)),
    ("default_d64", 64, 2048, plain(1e4)),
    ("default_d80", 80, 2048, plain(1e4)),
    ("default_d128_1e6", 128, 32768, plain(1e6)),
    ("default_d128_5e5", 128, 8192, plain(5e5)),
    ("default_odd_theta", 64, 4096, plain(12345.678)),
    ("linear_4", 64, 8192, {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    ("linear_2.5_d80", 80, 8192, {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.5}),
    ("dynamic_within", 64, 4096, {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
    ("dynamic_within_d128", 128, 2048, {"rope_type": "dynamic", "rope_theta": 5e5, "factor": 8.0}),
    ("llama31", 128, 131072, llama3(8.0)),
    ("llama32", 64, 131072, llama3(32.0)),
    ("llama3_short", 64, 512, llama3(8.0, original=64)),
    ("llama3_factors", 128, 65536, llama3(16.0, original=4096, low=2.0, high=8.0)),
    ("yarn_4", 128, 131072, yarn(4.0)),
    ("yarn_4_d64", 64, 131072, yarn(4.0, theta=1e4)),
    ("yarn_short", 64, 256, yarn(4.0, original=64, theta=1e4)),
    ("yarn_no_truncate", 128, 131072, yarn(4.0, truncate=False)),
    ("yarn_truncate", 128, 131072, yarn(4.0, truncate=True)),
    ("yarn_mscale", 64, 163840, yarn(40.0, 4096, 1e4, mscale=1.0, mscale_all_dim=0.707)),
    ("yarn_mscale_equal", 64, 163840, yarn(40.0, 4096, 1e4, mscale=1.0, mscale_all_dim=1.0)),
    ("yarn_mscale_alone", 64, 163840, yarn(40.0, 4096, 1e4, mscale=0.5)),
    ("yarn_mscale_zero", 64, 163840, yarn(40.0, 4096, 1e4, mscale=0.5, mscale_all_dim=0.0)),
    ("yarn_attention_factor", 128, 131072, yarn(4.0, attention_factor=0.8782488562869419)),
    ("yarn_attention_factor_and_mscale", 128, 131072,
     yarn(4.0, attention_factor=1.25, mscale=1.0, mscale_all_dim=0.5)),
    ("yarn_betas", 128, 131072, yarn(8.0, 8192, 5e5, beta_fast=64.0, beta_slow=2.0)),
    ("yarn_betas_no_truncate", 96, 131072, yarn(8.0, 8192, 5e5, beta_fast=16.0, beta_slow=0.5, truncate=False)),
    ("yarn_equal_bounds", 64, 16384, yarn(4.0, 4096, 1e4, beta_fast=10.0, beta_slow=10.0, truncate=False)),
    ("yarn_factor_one", 64, 4096, yarn(1.0, 4096, 1e4)),
    ("yarn_factor_null", 64, 16384, yarn(None, 4096, 1e4)),
]
COS_SIN = {"default_d64", "llama32", "yarn_4"}


def table(name: str, head_dim: int, max_position: int, parameters: dict[str, Any]) -> dict[str, Any]:
    config = LlamaConfig(hidden_size=head_dim * 2, num_attention_heads=2, head_dim=head_dim,
                         max_position_embeddings=max_position, rope_parameters=dict(parameters))
    kind = parameters["rope_type"]
    compute = LlamaRotaryEmbedding.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
    inv_freq, scaling = compute(config)
    assert inv_freq.dtype == torch.float32 and inv_freq.shape == (head_dim // 2,)
    out = {"name": name, "head_dim": head_dim, "max_position_embeddings": max_position,
           "rope_parameters": parameters, "attention_scaling": float(scaling), "inv_freq": inv_freq.tolist()}
    if name in COS_SIN:
        module = LlamaRotaryEmbedding(config)
        cos, sin = module(torch.zeros(1), torch.tensor([COS_SIN_POSITIONS]))
        half = head_dim // 2
        out |= {"positions": COS_SIN_POSITIONS, "cos": cos[0, :, :half].tolist(), "sin": sin[0, :, :half].tolist()}
    return out


def write(path: Path) -> None:
    assert ref  # imported first: it sets one thread and quiet logs
    cases = [table(*case) for case in CASES]
    write_json(path, {"format": 1, "cases": cases, "versions": versions()})
