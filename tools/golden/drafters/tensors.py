"""Safetensors files as numpy arrays: f32 and bf16, which numpy does not have, and int32."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

NAMES = {"F32": np.float32, "I32": np.int32}


def read(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a file; numbers as float64."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    out = {}
    for name, info in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in info["data_offsets"])
        if info["dtype"] == "BF16":
            bits = np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16
            values = bits.view(np.float32)
        else:
            values = np.frombuffer(data[begin:end], NAMES[info["dtype"]])
        values = values.reshape(info["shape"])
        out[name] = values if info["dtype"] == "I32" else values.astype(np.float64)
    return out


def rounded(values: np.ndarray) -> np.ndarray:
    """To the nearest bf16, ties to even; as float32."""
    bits = values.astype(np.float32).view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return ((bits >> 16) << 16).astype(np.uint32).view(np.float32)


def write(path: Path, tensors: dict[str, np.ndarray], bf16: bool = False) -> None:
    """int32 as it is; everything else as bf16, which must be exact, or f32."""
    header: dict[str, object] = {}
    chunks: list[bytes] = []
    offset = 0
    for name, values in sorted(tensors.items()):
        if values.dtype == np.int32:
            dtype, chunk = "I32", values.tobytes()
        elif bf16:
            dtype, chunk = "BF16", (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            dtype, chunk = "F32", values.astype(np.float32).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [offset, offset + len(chunk)]}
        offset += len(chunk)
        chunks.append(chunk)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))
