"""Compares a fresh set of goldens with the committed one.

Weights, configs and token ids must be equal; numbers may differ as much as another CPU's arithmetic allows.
Token ids of greedy runs are compared up to the first step whose gap is small.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from reference import relative_error
from safetensors.torch import load_file

SMALL_GAP = 1e-3


def json_differences(a: Any, b: Any, where: str) -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted(set(a) ^ set(b))
        out = [f"{where}.{k}: in one file only" for k in keys]
        for k in a.keys() & b.keys():
            out += json_differences(a[k], b[k], f"{where}.{k}")
        return out
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b)) for d in json_differences(x, y, f"{where}[{i}]")]
    if isinstance(a, float) and isinstance(b, float):
        same = math.isclose(a, b, rel_tol=0.3 if "half_error" in where else 1e-3, abs_tol=1e-6)
        return [] if same else [f"{where}: {a} and {b}"]
    return [] if a == b else [f"{where}: {a!r} and {b!r}"]


def tensor_differences(old: Path, new: Path) -> list[str]:
    a, b = load_file(old), load_file(new)
    out = [f"{old.name}: tensor {k} in one file only" for k in sorted(a.keys() ^ b.keys())]
    for k in sorted(a.keys() & b.keys()):
        x, y = a[k], b[k]
        if x.shape != y.shape or x.dtype != y.dtype:
            out.append(f"{old.name}: {k}: {x.dtype} {tuple(x.shape)} and {y.dtype} {tuple(y.shape)}")
            continue
        valid = comparable(a, k, x)
        if x.dtype == torch.int32:
            bad = int(((x != y) & valid).sum())
            if bad:
                out.append(f"{old.name}: {k}: {bad} of {x.numel()} ids differ")
        else:
            error = relative_error(torch.where(valid, y, x).float(), x.float())
            limit = 5e-2 if x.dtype in (torch.bfloat16, torch.float16) else 1e-4
            if error > limit:
                out.append(f"{old.name}: {k}: relative error {error:.2e}")
    return out


def comparable(tensors: dict[str, torch.Tensor], key: str, x: torch.Tensor) -> torch.Tensor:
    """False from the step after the first small gap of a greedy run on; the order of near-equal tops is free."""
    true = torch.ones_like(x, dtype=torch.bool)
    prefix = next((p for p in ("greedy_masked_", "greedy_") if key.startswith(p)), "")
    gap = tensors.get(prefix + "gap")
    if gap is None or key in ("prompt_ids", "prompt_offsets") or (not prefix and "input_ids" in tensors):
        return true
    alive = torch.cumsum((gap < SMALL_GAP).long(), -1) == 0
    if "top" in key:
        if key.endswith("top_ids"):
            return torch.zeros_like(x, dtype=torch.bool)  # the log-probs beside them are compared
        alive = alive[..., : x.shape[-2]]
        alive = alive[: x.shape[0]] if alive.dim() == 2 else alive
        return alive[..., None].expand_as(x)
    return alive.expand_as(x)


def compare(old: Path, new: Path) -> list[str]:
    """All differences between two folders of the same name (or two JSON files)."""
    if old.is_file():
        return json_differences(json.loads(old.read_text()), json.loads(new.read_text()), old.name)
    names_old, names_new = ({p.name for p in d.iterdir()} if d.exists() else set() for d in (old, new))
    out = [f"{old.name}/{n}: in one set only" for n in sorted(names_old ^ names_new)]
    for n in sorted(names_old & names_new):
        a, b = old / n, new / n
        if n in ("golden.safetensors", "greedy50.safetensors"):
            out += [f"{old.name}/{d}" for d in tensor_differences(a, b)]
        elif n == "golden.json":
            out += json_differences(json.loads(a.read_text()), json.loads(b.read_text()), f"{old.name}/{n}")
        elif a.read_bytes() != b.read_bytes():
            out.append(f"{old.name}/{n}: bytes differ")
    return out
