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
TOKENS = 3000


def ask(*args):
    done = subprocess.run([PROGRAM, *map(str, args), "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


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
    def assert_same(self, out):
        ours = ask("perplexity", "--model", out, "--text", TEXT, "--dtype", "f32", "--max-tokens", TOKENS)
        theirs = perplexity.measure(out, TEXT, [TOKENS])[0]
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

    def test_formats_mean_the_same(self):
        for kind, *more in (("fp8",), ("int8",), ("int4",), ("int4", "--group", "32"), ("fp8", "--calibration", TEXT),
                            ("int8", "--calibration", TEXT), ("int4", "--calibration", TEXT)):
            with self.subTest(kind=kind, more=more), tempfile.TemporaryDirectory() as folder:
                out = pathlib.Path(folder) / "out"
                ask("quantize", "--model", MODEL, "--format", kind, "--out", out, *more, "--max-tokens", 500)
                self.assert_same(out)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
