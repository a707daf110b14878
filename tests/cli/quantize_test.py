"""`dendrite perplexity` from outside.

    quantize_test.py PROGRAM TEST_DATA MODELS [unittest arguments]
"""
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, DATA, MODELS = sys.argv[1:4]
TINY = os.path.join(DATA, "models", "qwen3")
SHIPPED = os.path.join(MODELS, "dendrite-24")
HELDOUT = os.path.join(SHIPPED, "heldout.jsonl")


def run(*args, timeout=300):
    done = subprocess.run([PROGRAM, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


class Base(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="dendrite-quantize-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def json_of(self, *args):
        status, out, err = run(*args, "--json")
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(out.count("\n"), 1)
        return json.loads(out)

    def assert_error(self, *args, part, status=1):
        got, out, err = run(*args)
        self.assertEqual((got, out), (status, ""), err)
        self.assertIn(part, err)
        self.assertLessEqual(err.count("\n"), 4, err)


class Perplexity(Base):
    def test_is_what_transformers_says(self):
        with open(os.path.join(DATA, "perplexity.json")) as file:
            golden = json.load(file)["some"]
        args = ["perplexity", "--model", SHIPPED, "--text", HELDOUT, "--max-tokens", golden["limit"]]
        exact = self.json_of(*args, "--dtype", "f32")
        self.assertEqual(exact["tokens"], golden["tokens"])
        self.assertLess(abs(exact["nats"] / golden["nats"] - 1), 1e-4)
        self.assertAlmostEqual(exact["perplexity"], math.exp(exact["nats"] / exact["tokens"]), places=12)
        expected = math.exp(golden["nats"] / golden["tokens"])
        self.assertLess(abs(self.json_of(*args)["perplexity"] / expected - 1), 0.005)  # bf16

    def test_is_that_of_scores(self):
        text = "A text of some words, and a few more."
        got = self.json_of("perplexity", "--model", TINY, "--text", self.write("a.txt", text))
        ids = subprocess.run([PROGRAM, "tokenize", "--model", TINY, "--json"], input=text.encode(),
                             capture_output=True, check=True).stdout
        bos, *ids = json.loads(ids)["ids"]
        score = self.json_of("score", "--model", TINY, "--prompt-ids", bos, "--continuation-ids",
                             ",".join(map(str, ids)))["scores"][0]
        self.assertEqual((got["tokens"], got["texts"], got["windows"]), (len(ids), 1, 1))
        self.assertAlmostEqual(got["nats"], -score["logprob"], places=4)
        self.assertGreater(got["error"], 0)

    def test_people_get_lines(self):
        status, out, _ = run("perplexity", "--model", TINY, "--text", self.write("a.txt", "Some text."))
        self.assertEqual(status, 0)
        self.assertRegex(out, r"(?m)^perplexity +\d+\.\d+ \+- ")
        self.assertRegex(out, r"(?m)^tokens +\d+ of 1 texts, in 1 windows of up to ")

    def test_what_cannot_be_read_is_named(self):
        args = ["perplexity", "--model", TINY, "--text"]
        self.assert_error(*args, self.path("none.txt"), part="none.txt")
        self.assert_error(*args, self.write("empty.txt", ""), part="no token to score")
        for line in ("no JSON", '{"prompt": "a"}', '{"text": 5}', '{"text": "a", "prompt": 5}', "[]"):
            self.assert_error(*args, self.write("bad.jsonl", '{"text": "good"}\n\n' + line + "\n"), part="bad.jsonl:3: ")
        self.assert_error("perplexity", "--model", TINY, part="--text", status=2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
