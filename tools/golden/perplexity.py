"""What transformers makes of texts that a model has not seen: writes tests/data/perplexity.json.

    perplexity.py --out tests/data/perplexity.json                 the shipped model's
    perplexity.py --model FOLDER [--text FILE.jsonl] [--tokens N]   prints those of another folder

In f32, eager attention, one sample at a time: BOS, its "prompt", which is given, and its "text", which is scored. No
further sample begins once --tokens are scored. A folder that `dendrite quantize` wrote is read with its weights
widened, and computed in f32 too: what compressed-tensors takes them to mean.
"""

import argparse
import json
import math
import pathlib

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/dendrite-24"
SOME = 3000  # tokens of the shorter check


def load(folder):
    options = {}
    config = json.loads((folder / "config.json").read_text())
    if "quantization_config" in config:
        options["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", **options).eval()


@torch.no_grad()
def measure(folder, text, limits):
    """{"tokens": scored, "nats": their sum} up to each limit, in ascending order; 0: all."""
    model = load(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    limits = [limit or math.inf for limit in limits]
    tokens, nats, found = 0, 0.0, []
    for line in text.read_text().splitlines():
        sample = json.loads(line)
        given = tokenizer(sample.get("prompt", ""))["input_ids"]
        ids = given + tokenizer(sample["text"], add_special_tokens=False)["input_ids"]
        logprobs = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        for place in range(len(given), len(ids)):
            nats -= logprobs[place - 1, ids[place]].item()
        tokens += len(ids) - len(given)
        while limits and tokens >= limits[0]:
            found.append({"tokens": tokens, "nats": nats})
            limits.pop(0)
    return found + [{"tokens": tokens, "nats": nats}] * len(limits)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--text", type=pathlib.Path, default=MODEL / "heldout.jsonl")
    parser.add_argument("--tokens", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.out is None:
        print(json.dumps(measure(arguments.model, arguments.text, [arguments.tokens])[0]))
        return
    some, every = measure(MODEL, MODEL / "heldout.jsonl", [SOME, 0])
    golden = {"format": 1, "model": "dendrite-24", "text": "models/dendrite-24/heldout.jsonl", "all": every,
              "some": {"limit": SOME, **some},
              "versions": {"torch": torch.__version__, "transformers": transformers.__version__}}
    arguments.out.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
