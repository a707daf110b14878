#!/usr/bin/env python3
"""vLLM's side of `dendrite-bench compose`: the same contexts with its prefix cache, to the first token.

  pip install -r bench/peers/vllm/requirements.txt        # any machine with a GPU that vLLM runs on
  python3 bench/peers/vllm/compose.py --shape 8b --out bench/results/vllm-compose-8b.jsonl

Random weights, token ids in and out. Everything that a context is put together of was a prompt before, as in the bench:
`compose` has the chunks in another order than they were computed in, `edit` drops a quarter of a prompt that is known,
`join` has siblings one after the other. A prefix cache finds what begins alike. The file: bench/results/README.md.
"""
import argparse
import json
import pathlib
import random
from typing import Any

import run


class Contexts:
    def __init__(self, generate: run.Generate, options: argparse.Namespace) -> None:
        self.generate, self.options = generate, options
        self.random = random.Random(1)
        self.samples: dict[str, list[float]] = {}

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(1000, run.VOCAB - 1000) for _ in range(count)]

    def time(self, name: str, prompt: list[int]) -> None:
        self.samples.setdefault(name, []).append(self.generate([prompt], 1, 0.0)[0] * 1e3)

    def know(self, prompts: list[list[int]]) -> None:
        self.generate(prompts, 1, 0.0)

    def trial(self) -> None:
        o = self.options
        length = o.chunks * o.chunk_tokens
        prompt = self.tokens(length + o.query)
        self.time("plain", prompt)
        self.time("known prompt", prompt)
        chunks = [self.tokens(o.chunk_tokens) for _ in range(o.chunks)]
        self.know(chunks)
        context = [token for chunk in reversed(chunks) for token in chunk] + self.tokens(o.query)
        self.time("compose", context)
        self.time("repeat", context)
        prompt = self.tokens(length)
        self.know([prompt])
        self.time("edit", prompt[:length // 4] + prompt[length // 2:])
        trunk = self.tokens(o.trunk)
        own = [self.tokens(o.own) for _ in range(o.siblings)]
        self.know([trunk])
        self.know([trunk + tokens for tokens in own])
        self.time("join", trunk + [token for tokens in own for token in tokens])

    def rows(self) -> list[dict[str, Any]]:
        o = self.options
        context = {"tokens": o.chunks * o.chunk_tokens + o.query}
        params: dict[str, dict[str, int]] = {"edit": {"behind": o.chunks * o.chunk_tokens // 2},
                  "join": {"trunk": o.trunk, "siblings": o.siblings, "own": o.own}}
        return [run.row_json("compose", name, params.get(name, context), "ms", samples)
                for name, samples in self.samples.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(run.SHAPES), required=True)
    for name, value in (("chunks", 16), ("chunk-tokens", 2048), ("query", 64), ("siblings", 8), ("trunk", 4096),
                        ("own", 1024), ("trials", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    generate, version = run.start_vllm(options.shape, "default")
    contexts = Contexts(generate, options)
    contexts.trial()  # does not count
    contexts.samples.clear()
    for _ in range(options.trials):
        contexts.trial()
        command = f"compose.py --shape {options.shape} --trials {options.trials}"
        written = run.run_json(options.shape, "vllm-default", version, command, contexts.rows())
        options.out.write_text(json.dumps(written) + "\n")
    for row in contexts.rows():
        print(f"R {row['name']} {row['params']} {row['samples']}", flush=True)


if __name__ == "__main__":
    main()
