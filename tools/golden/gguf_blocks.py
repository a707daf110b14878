#!/usr/bin/env python3
"""Writes tests/data/quant/gguf_blocks.json: random blocks of all types of GGUF that are read, and
their values as the package `gguf` (its numpy reference of ggml) widens them, bit for bit.

    pip install gguf==0.19.0
    tools/golden/gguf_blocks.py tests/data/quant/gguf_blocks.json
"""

import json
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

BLOCKS = 3
# Where in a block an f16 lies.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
          "MXFP4": [], "NVFP4": []}  # fmt: skip


def block_of(name, size, random):
    block = random.integers(0, 256, size, dtype=np.uint8)
    for at in HALVES[name]:
        block[at : at + 2] = np.float16(random.normal() * 2.0 ** random.integers(-16, 4)).reshape(1).view(np.uint8)
    if name == "MXFP4":  # 255 is no number
        block[0] = random.integers(0, 255)
    if name == "NVFP4":
        block[:4] = random.integers(0, 127, 4)
    return block


def main():
    random = np.random.default_rng(20261126)
    out = {}
    for name in HALVES:
        kind = GGMLQuantizationType[name]
        _, size = GGML_QUANT_SIZES[kind]
        blocks = np.stack([block_of(name, size, random) for _ in range(BLOCKS)])
        with np.errstate(all="ignore"):
            values = dequantize(blocks.reshape(1, -1), kind).astype(np.float32)
        assert np.isfinite(values).all(), name
        out[name] = {"blocks": blocks.tobytes().hex(), "values": values.tobytes().hex()}
    with open(sys.argv[1], "w") as file:
        json.dump(out, file, indent=0)
        file.write("\n")


main()
