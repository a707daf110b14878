#!/usr/bin/env python3
"""vLLM's side of the tables: the workloads of bench/headline.sh on random weights of the same shapes.

  pip install -r bench/peers/vllm/requirements.txt        # any machine with a GPU that vLLM runs on
  python3 bench/peers/vllm/run.py --shape 8b --variant default --out bench/results/vllm-default-8b.jsonl
  python3 bench/peers/vllm/compare.py                     # both sides and their ratio

Token ids in and out: no tokenizer, no detokenizing, no stop at end-of-sequence; prefix caching on, as a search
would use it; T = 0.7. Variants: `default`, and `cascade`, its attention for shared prefixes, which is off by default
and is in its older model runner only. The file (bench/results/README.md) is written again after each row, the rows
of the README first; --budget-s ends the run in time on a rented machine.
"""
import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable

VOCAB = 128256  # of the smallest: ids that all shapes have
LLAMA: dict[str, Any] = dict(architectures=["LlamaForCausalLM"], model_type="llama", rope_theta=500000.0,
                             mlp_bias=False)


def hybrid(dim: int, ffn: int, layers: int, heads: int, value_heads: int) -> dict[str, Any]:
    """Qwen3.5, its text alone."""
    return dict(architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", hidden_size=dim, intermediate_size=ffn,
                num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=4, head_dim=256,
                layer_types=(["linear_attention"] * 3 + ["full_attention"]) * (layers // 4), linear_num_key_heads=16,
                linear_num_value_heads=value_heads, linear_key_head_dim=128, linear_value_head_dim=128,
                linear_conv_kernel_dim=4, mamba_ssm_dtype="float32",
                rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25),
                vocab_size=248320, tie_word_embeddings=False)


SHAPES: dict[str, dict[str, Any]] = {
    "8b": dict(**LLAMA, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
               intermediate_size=14336, vocab_size=VOCAB, tie_word_embeddings=False),
    "1b": dict(**LLAMA, hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
               intermediate_size=8192, vocab_size=VOCAB, tie_word_embeddings=True),
    "30b-a3b": dict(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", rope_theta=1e6, hidden_size=2048,
                    num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
                    intermediate_size=6144, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8,
                    norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], vocab_size=151936,
                    tie_word_embeddings=False),
    "gpt-oss-20b": dict(architectures=["GptOssForCausalLM"], model_type="gpt_oss", rope_theta=150000.0,
                        rope_scaling=dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                          original_max_position_embeddings=4096),
                        hidden_size=2880, num_hidden_layers=24, num_attention_heads=64, num_key_value_heads=8,
                        head_dim=64, intermediate_size=2880, num_local_experts=32, num_experts_per_tok=4,
                        sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 12,
                        attention_bias=True, swiglu_limit=7.0, vocab_size=201088, tie_word_embeddings=False),
    "qwen3.5-9b": hybrid(4096, 12288, 32, 16, 32),
    "qwen3.5-27b": hybrid(5120, 17408, 64, 24, 48),
}
TEMPERATURE = 0.7
SUFFIX = 16  # tokens of each sequence's own, after the shared ones
# generate(prompts, new tokens, temperature, sampling parameters by name) -> (seconds, vLLM's outputs)
Generate = Callable[..., tuple[float, list[Any]]]
Trial = Callable[[], float]


@dataclasses.dataclass
class Row:
    """`start` prepares (shared prompts, a trial that does not count) and returns one trial."""
    bench: str
    name: str
    unit: str
    params: dict[str, Any]
    trials: int
    start: Callable[[], Trial]
    samples: list[float] = dataclasses.field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return row_json(self.bench, self.name, self.params, self.unit, self.samples)


def row_json(bench: str, name: str, params: dict[str, Any], unit: str, samples: list[float]) -> dict[str, Any]:
    return {"bench": bench, "name": name, "params": params, "unit": unit, "trials": len(samples),
            "samples": [float(f"{sample:.6g}") for sample in samples]}


class Workloads:
    """The rows; each has the bench, the name and the parameters of the row of ours that it stands beside."""

    def __init__(self, generate: Generate) -> None:
        self.generate = generate
        self.random = random.Random(1)

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(1000, VOCAB - 1000) for _ in range(count)]

    def rows(self, trials: int) -> list[Row]:
        few = max(1, trials // 4)
        return [self.decode(1, 512, 16, 256, trials), self.decode(32, 4096, 16, 144, trials),
                self.decode(128, 4096, 16, 144, trials), self.search(5, 4, 4, trials),
                self.decode(8, 4096, 16, 144, few), self.decode(16, 8192, 16, 144, few),
                self.prefill(4096, trials), self.score(2048, 64, 16, few), self.search(10, 5, 5, few),
                self.decode(32, 32768, 8, 72, few)]

    def decode(self, branches: int, prefix: int, low: int, high: int, trials: int) -> Row:
        """A step, as the slope between two lengths: what is not a step cancels."""

        def start() -> Trial:
            shared = self.tokens(prefix)
            self.generate([shared], 1, TEMPERATURE)

            def seconds(count: int) -> float:
                prompts = [shared + self.tokens(SUFFIX) for _ in range(branches)]
                taken, outputs = self.generate(prompts, count, TEMPERATURE)
                got = [len(output.outputs[0].token_ids) for output in outputs]
                assert got == [count] * branches, f"{got} tokens; expected {count} each"
                return taken

            return lambda: (-seconds(low) + seconds(high)) / (high - low) * 1e3

        params = {"branches": branches, "prompt_length": prefix, "own": SUFFIX + low, "output_length": high - low}
        return Row("decode", "step", "ms", params, trials, start)

    def search(self, depth: int, branch: int, keep: int, trials: int, prompt: int = 1024, length: int = 64,
               judge: int = 16) -> Row:
        """Breadth first: `length` tokens for every child, a judge's suffix and one greedy token for each; the best
        stay."""

        def trial() -> float:
            suffix, kept = self.tokens(judge), [self.tokens(prompt)]
            begin = time.perf_counter()
            for _ in range(depth):
                _, outputs = self.generate(kept, length, TEMPERATURE, n=branch)
                children = [path + list(child.token_ids)
                            for path, output in zip(kept, outputs) for child in output.outputs]
                _, judged = self.generate([child + suffix for child in children], 1, 0.0)
                scores = [output.outputs[0].token_ids[0] for output in judged]
                order = sorted(range(len(children)), key=lambda i: -scores[i])[:keep]
                kept = [children[i] for i in order]
            return time.perf_counter() - begin

        params = {"depth": depth, "branch": branch, "keep": keep, "prompt_length": prompt, "length": length,
                  "temperature": TEMPERATURE}
        return Row("tree-vs-linear", "tree", "s", params, trials, warm(trial))

    def prefill(self, length: int, trials: int) -> Row:
        params = {"prompt_length": length}
        return Row("decode", "ttft", "ms", params, trials,
                   warm(lambda: self.generate([self.tokens(length)], 1, TEMPERATURE)[0] * 1e3))

    def score(self, prefix: int, continuations: int, length: int, trials: int) -> Row:
        """Log-probs of the tokens of continuations. vLLM does not read its prefix cache for those of a prompt."""

        def trial() -> float:
            shared = self.tokens(prefix)
            prompts = [shared + self.tokens(length) for _ in range(continuations)]
            return self.generate(prompts, 1, 0.0, prompt_logprobs=1)[0] * 1e3

        params = {"prompt_length": prefix, "continuations": continuations, "length": length}
        return Row("score", "prompt and trie", "ms", params, trials, warm(trial))


def warm(trial: Trial) -> Callable[[], Trial]:
    """For a row whose only preparation is a trial that does not count."""

    def start() -> Trial:
        trial()
        return trial

    return start


def measure(row: Row, end: float, now: Callable[[], float] = time.monotonic) -> bool:
    """Trials of a row, while one more of them would be over at `end`. False: there was no time for all."""
    begin = now()
    if begin >= end:
        return False
    trial = row.start()
    longest = 0.0
    while len(row.samples) < row.trials:
        begin = now()
        if begin + longest >= end:
            return False
        row.samples.append(trial())
        longest = max(longest, now() - begin)
    return True


def first_line(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


def machine() -> dict[str, Any]:
    """As bench/provenance.h says."""
    gpu = first_line("nvidia-smi", "--query-gpu=name,driver_version,uuid", "--format=csv,noheader")
    name, driver, uuid = gpu.split(", ") if gpu.count(", ") == 2 else ("", "", "")
    cpu = [line.split(": ", 1)[1] for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
           if line.startswith("model name")]
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text()
    return {"gpu": name, "driver": driver, "cpu": cpu[0] if cpu else "unknown", "cores": os.cpu_count(),
            "id": (uuid.removeprefix("GPU-") or boot)[:8]}


def run_json(shape: str, side: str, version: str, command: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    here = machine()
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"schema": 1, "bench": "headline", "side": side, "version": version,
            "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "command": command, "machine": here,
            "device": {"kind": "cuda", "name": here["gpu"], "dtype": "bf16"}, "model": f"random-{shape}",
            "rows": rows, "peers": []}


def write_config(shape: str, folder: pathlib.Path) -> None:
    """All that a model of random weights needs, which takes token ids alone."""
    config = dict(hidden_act="silu", rms_norm_eps=1e-5, max_position_embeddings=65536, torch_dtype="bfloat16",
                  bos_token_id=128000, eos_token_id=128001, attention_bias=False, use_cache=True) | SHAPES[shape]
    (folder / "config.json").write_text(json.dumps(config))


def clear_biases(model: Any) -> None:
    """All tokens get the same biases, and random ones are as large as what else is in the stream: with them nearly all
    tokens would choose the same experts."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.zero_()


def register_hybrids() -> None:
    """vLLM knows the text of Qwen3.5 as a part of the model with vision: here it is one of its own."""
    from vllm import ModelRegistry
    from vllm.model_executor.models import qwen3_5

    whole = qwen3_5.Qwen3_5ForConditionalGeneration
    states = {name: classmethod(getattr(whole, name).__func__)
              for name in dir(whole) if name.startswith("get_mamba_state_")}
    text = type("Qwen3_5Text", (qwen3_5.Qwen3_5ForCausalLM, qwen3_5.IsHybrid), states)
    ModelRegistry.register_model("Qwen3_5ForCausalLM", text)


def start_vllm(shape: str, variant: str, quantization: str | None) -> tuple[Generate, str]:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # of clear_biases
    settings: dict[str, Any] = {}
    if variant == "cascade":
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        settings["disable_cascade_attn"] = False
    if shape.startswith("qwen3.5"):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # what register_hybrids() says holds in this process
    import vllm
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt
    folder = pathlib.Path(tempfile.mkdtemp(prefix="vllm-config-"))
    write_config(shape, folder)
    if shape.startswith("qwen3.5"):
        register_hybrids()
        # (Of the ways that vLLM has for prompts of delta networks the one that takes no package beside it.)
        settings |= dict(mamba_cache_mode="align", mamba_ssm_cache_dtype="float32", gdn_prefill_backend="triton")
    sizes = [1, 2, 4] + list(range(8, 129, 8)) + [160, 192, 256]
    llm = LLM(model=str(folder), load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True,
              enable_prefix_caching=True, max_model_len=33792, max_num_seqs=256, gpu_memory_utilization=0.80, seed=0,
              disable_log_stats=True, generation_config="vllm", quantization=quantization,
              compilation_config={"cudagraph_capture_sizes": sizes},
              **settings)
    llm.apply_model(clear_biases)

    def generate(prompts: list[list[int]], count: int, temperature: float, **more: Any) -> tuple[float, list[Any]]:
        sampling = SamplingParams(max_tokens=count, temperature=temperature, ignore_eos=True, detokenize=False, **more)
        begin = time.perf_counter()
        outputs = llm.generate([TokensPrompt(prompt_token_ids=prompt) for prompt in prompts], sampling, use_tqdm=False)
        return time.perf_counter() - begin, outputs

    return generate, vllm.__version__


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--variant", choices=["default", "cascade"], default="default")
    parser.add_argument("--quantization", help="of the layers, made by vLLM when it loads them: fp8")
    parser.add_argument("--decode", nargs="+", metavar="BRANCHESxTOKENS",
                        help="steps alone, of so many branches behind so many shared tokens: 1x4096 32x4096")
    parser.add_argument("--prefill", nargs="+", type=int, metavar="TOKENS",
                        help="first tokens of prompts, with --decode or alone")
    parser.add_argument("--trials", type=int, default=16, help="of the README's rows; a quarter of it for the others")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="of wall time, starting vLLM included")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    end = time.monotonic() + options.budget_s
    generate, version = start_vllm(options.shape, options.variant, options.quantization)
    work = Workloads(generate)
    generate([work.tokens(64)] * 4, 8, TEMPERATURE)
    generate([work.tokens(3000)], 4, 0.0)
    rows = work.rows(options.trials)
    if options.decode or options.prefill:
        sizes = [map(int, size.split("x")) for size in options.decode or []]
        rows = [work.prefill(length, options.trials) for length in options.prefill or []]
        rows += [work.decode(branches, shared, 16, 144, options.trials) for branches, shared in sizes]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    command = f"run.py --shape {options.shape} --variant {options.variant} --trials {options.trials}"
    if options.decode:
        command += f" --decode {' '.join(options.decode)}"
    if options.prefill:
        command += f" --prefill {' '.join(map(str, options.prefill))}"
    if options.quantization is not None:
        command += f" --quantization {options.quantization}"
    for row in rows:
        complete = measure(row, end)
        done = [row.to_json() for row in rows if row.samples]
        written = run_json(options.shape, f"vllm-{options.variant}", version, command, done)
        options.out.write_text(json.dumps(written) + "\n")
        print(f"R {row.bench} {row.name} {row.params} {row.unit} {row.to_json()['samples']}", flush=True)
        if not complete:
            sys.exit(f"run.py: the time is over after {len(row.samples)} of {row.trials} trials of {row.name} "
                     f"{row.params}; rows that are missing did not fit")


if __name__ == "__main__":
    main()
