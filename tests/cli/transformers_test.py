"""What `dendrite quantize` writes means the same to transformers: the same perplexity in f32, with the weights widened.

    transformers_test.py PROGRAM MODELS [unittest arguments]

Needs the packages of transformers.txt.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools/golden"))
os.environ["HF_HUB_OFFLINE"] = "1"

import perplexity  # noqa: E402

PROGRAM, MODELS = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = MODELS / "dendrite-24"
TEXT = MODEL / "heldout.jsonl"
TOKENS = 3000


def ask(*args):
    done = subprocess.run([PROGRAM, *map(str, args), "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


class Transformers(unittest.TestCase):
    def test_formats_mean_the_same(self):
        for kind, *more in (("fp8",), ("int8",), ("int4",), ("int4", "--group", "32"), ("fp8", "--calibration", TEXT),
                            ("int8", "--calibration", TEXT), ("int4", "--calibration", TEXT)):
            with self.subTest(kind=kind, more=more), tempfile.TemporaryDirectory() as folder:
                out = pathlib.Path(folder) / "out"
                ask("quantize", "--model", MODEL, "--format", kind, "--out", out, *more, "--max-tokens", 500)
                ours = ask("perplexity", "--model", out, "--text", TEXT, "--dtype", "f32", "--max-tokens", TOKENS)
                theirs = perplexity.measure(out, TEXT, [TOKENS])[0]
                self.assertEqual(ours["tokens"], theirs["tokens"])
                self.assertLess(abs(ours["nats"] / theirs["nats"] - 1), 1e-5)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
