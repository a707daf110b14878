#!/usr/bin/env python3
"""vLLM's side of `dendrite-bench constraint`: 256 tokens of branches of one prompt, with and without a constraint.

  pip install -r bench/peers/vllm/requirements.txt        # any machine with a GPU that vLLM runs on
  python3 bench/constraint_tokenizers.py tokenizers
  python3 bench/peers/vllm/constrained.py --shape 1b --tokenizer tokenizers/152k --backend xgrammar --out FILE

Random weights of the shape with the tokenizer's vocabulary, T = 0.7, no detokenizing. The constraints are those of the
bench: a regex under which nothing is ever forced, and records of a JSON schema. The sides take turns; one trial before
does not count. The file: bench/results/README.md.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import tempfile
import time
from typing import Any

import run

PROMPT, TOKENS = 128, 256
RECORDS = {
    "type": "array", "minItems": 128,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 16},
            "quantity": {"type": "integer", "minimum": 0, "maximum": 1000},
            "status": {"enum": ["ordered", "shipped", "delivered", "returned"]},
            "express": {"type": "boolean"},
        },
        "required": ["name", "quantity", "status", "express"],
        "additionalProperties": False,
    },
}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "regex, nothing forced": {"regex": "[a-z ]{8192}"},
    "JSON records": {"json": RECORDS},
}


def model_folder(shape: str, tokenizer: pathlib.Path) -> tuple[pathlib.Path, int]:
    """A configuration of the shape with this tokenizer; and the vocabulary, padded as ours is."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="vllm-constrained-"))
    shutil.copy(tokenizer / "tokenizer.json", folder)
    settings = json.loads((tokenizer / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**settings, "tokenizer_class": "PreTrainedTokenizerFast"}))
    from tokenizers import Tokenizer
    known = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    vocab = (known.get_vocab_size() + 127) // 128 * 128
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", rms_norm_eps=1e-5,
                  rope_theta=500000.0, max_position_embeddings=65536, torch_dtype="bfloat16", bos_token_id=None,
                  eos_token_id=known.token_to_id(settings["eos_token"]), attention_bias=False, mlp_bias=False,
                  use_cache=True, **{**run.SHAPES[shape], "vocab_size": vocab})
    (folder / "config.json").write_text(json.dumps(config))
    return folder, vocab


class Side:
    """vLLM with one backend of its structured outputs."""

    def __init__(self, shape: str, tokenizer: pathlib.Path, backend: str) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        import vllm
        from vllm import LLM
        self.version = vllm.__version__
        folder, self.vocab = model_folder(shape, tokenizer)
        self.random = random.Random(1)
        self.llm = LLM(model=str(folder), load_format="dummy", dtype="bfloat16", enable_prefix_caching=True,
                       max_model_len=2048, max_num_seqs=64, gpu_memory_utilization=0.80, seed=0, disable_log_stats=True,
                       generation_config="vllm", compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]},
                       structured_outputs_config={"backend": backend})

    def ms_a_token(self, prompt: list[int], branches: int, constraint: dict[str, Any] | None) -> float:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import StructuredOutputsParams
        limits = StructuredOutputsParams(**constraint) if constraint else None
        sampling = SamplingParams(max_tokens=TOKENS, temperature=run.TEMPERATURE, ignore_eos=True, detokenize=False,
                                  structured_outputs=limits, n=branches)
        begin = time.perf_counter()
        (out,) = self.llm.generate([TokensPrompt(prompt_token_ids=prompt)], sampling, use_tqdm=False)
        taken = time.perf_counter() - begin
        got = [len(text.token_ids) for text in out.outputs]
        # (Some tokens are a hundred blanks: 8192 letters may be fewer tokens than that.)
        assert 10 * got.count(TOKENS) >= 9 * branches, f"{got} tokens; expected {TOKENS} each"
        return taken * 1e3 / TOKENS

    def rows(self, name: str, branches: int, trials: int) -> list[dict[str, Any]]:
        prompt = [self.random.randrange(1000, self.vocab - 1000) for _ in range(PROMPT)]
        sides: dict[str, list[float]] = {"token, unconstrained": [], "token, constrained": []}
        for trial in range(-1, trials):
            for row, constraint in zip(sides, (None, CONSTRAINTS[name])):
                ms = self.ms_a_token(prompt, branches, constraint)
                if trial >= 0:
                    sides[row].append(ms)
        params = {"constraint": name, "branches": branches, "output_length": TOKENS}
        return [run.row_json("constraint", row, params, "ms", samples) for row, samples in sides.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(run.SHAPES), required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="a folder of constraint_tokenizers.py")
    parser.add_argument("--backend", choices=["xgrammar", "guidance"], default="xgrammar")
    parser.add_argument("--branches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    side = Side(options.shape, options.tokenizer, options.backend)
    command = f"constrained.py --shape {options.shape} --backend {options.backend} --trials {options.trials}"
    rows: list[dict[str, Any]] = []
    for name in CONSTRAINTS:
        for branches in options.branches:
            rows += side.rows(name, branches, options.trials)
            for row in rows[-2:]:
                print(f"R {row['name']} {row['params']} {row['unit']} {row['samples']}", flush=True)
            written = run.run_json(options.shape, f"vllm-{options.backend}", side.version, command, rows)
            options.out.write_text(json.dumps(written) + "\n")


if __name__ == "__main__":
    main()
