#!/usr/bin/env python3
"""Searches of several agents on one engine and on several, by dendrite.ray.Pool, in one run.

    PYTHONPATH=python bench/python_pool.py [--shape 8b] [--device cuda] [--workers 1,2] [--agents 8]

An agent: a prompt of its own, then rounds in which each of `width` branches grows `children` by a
thought and the likeliest `width` are kept. Random weights of the shape, so texts mean nothing; the
tokens have to be the same on any number of workers. Times are whole runs, the first one is thrown
away.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time
from typing import Any

from dendrite import Session
from dendrite.ray import Pool

SHAPES = {
    "tiny": dict(dim=64, ffn=128, layers=1, heads=2, kv=1, vocab=320),
    "1b": dict(dim=2048, ffn=8192, layers=16, heads=32, kv=8, vocab=128256),
    "8b": dict(dim=4096, ffn=14336, layers=32, heads=32, kv=8, vocab=128256),
}


def write_model(shape: dict[str, int], folder: pathlib.Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape["dim"],
        "intermediate_size": shape["ffn"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv"],
        "vocab_size": shape["vocab"],
        "max_position_embeddings": 65536,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def search(session: Session, item: dict[str, int]) -> list[int]:
    """The tokens of the best branch after all rounds."""
    dice = random.Random(item["agent"])
    root = session.prefill([dice.randrange(3, item["vocab"]) for _ in range(item["prompt"])])
    beam = [root]
    for _ in range(item["rounds"]):
        children = [child for node in beam for child in node.fork(item["children"])]
        session.decode(
            children, max_tokens=item["thought"], temperature=1.0, ignore_eos=True, top_logprobs=0
        )
        children.sort(key=lambda child: -child.logprob)
        session.prune(children[item["width"] :])
        beam = children[: item["width"]]
    return [int(token) for token in beam[0].tokens]


def run(model: str, workers: int, options: argparse.Namespace) -> dict[str, Any]:
    items = [
        {name: getattr(options, name) for name in ("prompt", "rounds", "width", "children")}
        | {"agent": agent, "thought": options.thought, "vocab": SHAPES[options.shape]["vocab"]}
        for agent in range(options.agents)
    ]
    engine = {"device": options.device, "load_format": "dummy", "kv_tokens": options.kv_tokens}
    if options.backend_library:
        engine["backend_library"] = options.backend_library
    times, found = [], []
    with Pool(model, workers=workers, num_gpus=options.device == "cuda", engine=engine) as pool:
        for _ in range(options.trials + 1):
            begin = time.perf_counter()
            found = pool.run(search, items, seed=1)
            times.append(time.perf_counter() - begin)
    return {
        "workers": workers,
        "seconds": times[1:],
        "median": statistics.median(times[1:]),
        "tokens": found,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", default="1,2", help="one run for each number")
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--width", type=int, default=5)
    parser.add_argument("--children", type=int, default=4)
    parser.add_argument("--thought", type=int, default=32, help="tokens")
    parser.add_argument("--kv-tokens", type=int, default=65536)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--backend-library", help="of the GPU, where no package brings it")
    parser.add_argument("--json", help="also write the times to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_model(SHAPES[options.shape], pathlib.Path(folder))
        runs = [run(folder, int(count), options) for count in options.workers.split(",")]
    same = all(one["tokens"] == runs[0]["tokens"] for one in runs)
    for one in runs:
        times = runs[0]["median"] / one["median"]
        print(f"{one['workers']} workers  {one['median']:.3f} s  ({times:.2f} x)")
        del one["tokens"]
    print("tokens:", "the same" if same else "DIFFER")
    if options.json:
        result = {"options": vars(options), "same_tokens": same, "runs": runs}
        pathlib.Path(options.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
