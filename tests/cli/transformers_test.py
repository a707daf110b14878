"""What `dendrite quantize` writes means the same to transformers: the same perplexity in f32, with the weights widened.

    transformers_test.py PROGRAM MODELS [unittest arguments]

Needs the packages of transformers.txt.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/golden"))
os.environ["HF_HUB_OFFLINE"] = "1"

import perplexity  # noqa: E402
import safetensors.torch  # noqa: E402

PROGRAM, MODELS = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = MODELS / "dendrite-24"
TEXT = MODEL / "heldout.jsonl"
GOLDENS = pathlib.Path(__file__).resolve().parents[1] / "data/models"
TOKENS = 3000


def ask(*args):
    done = subprocess.run([PROGRAM, *map(str, args), "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def mixture(name, folder):
    """A golden with a tokenizer of its vocabulary."""
    shutil.copytree(GOLDENS / name, folder)
    for text in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODELS / "dendrite-echo" / text, folder)
    return folder


def untied(folder):
    """The model with an output matrix of its own."""
    shutil.copytree(MODEL, folder)
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config))
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


class Transformers(unittest.TestCase):
    def assert_same(self, out, limit=TOKENS):
        ours = ask("perplexity", "--model", out, "--text", TEXT, "--dtype", "f32", "--max-tokens", limit)
        theirs = perplexity.measure(out, TEXT, [limit])[0]
        self.assertEqual(ours["tokens"], theirs["tokens"])
        self.assertLess(abs(ours["nats"] / theirs["nats"] - 1), 1e-5)

    def test_the_output_matrix_means_the_same(self):
        with tempfile.TemporaryDirectory() as name:
            model = untied(pathlib.Path(name) / "model")
            for kind, output in (("int8", "int8"), ("int4", "int8"), ("fp8", "int8"), ("int4", "fp8")):
                with self.subTest(kind=kind, output=output):
                    out = pathlib.Path(name) / f"{kind}-{output}"
                    ask("quantize", "--model", model, "--format", kind, "--output-quantization", output, "--out", out)
                    self.assert_same(out)

    def test_mixtures_mean_the_same(self):
        """Whose experts it puts together again, where it knows how: not of every family."""
        with tempfile.TemporaryDirectory() as folder:
            model = mixture("qwen3_moe_fused", pathlib.Path(folder) / "model")
            out = pathlib.Path(folder) / "out"
            ask("quantize", "--model", model, "--format", "fp8", "--out", out)
            self.assert_same(out, limit=300)

    def test_formats_mean_the_same(self):
        for kind, *more in (("fp8",), ("int8",), ("int4",), ("int4", "--group", "32"), ("fp8", "--calibration", TEXT),
                            ("int8", "--calibration", TEXT), ("int4", "--calibration", TEXT)):
            with self.subTest(kind=kind, more=more), tempfile.TemporaryDirectory() as folder:
                out = pathlib.Path(folder) / "out"
                ask("quantize", "--model", MODEL, "--format", kind, "--out", out, *more, "--max-tokens", 500)
                self.assert_same(out)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
