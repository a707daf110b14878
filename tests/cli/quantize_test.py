"""`dendrite quantize` and `dendrite perplexity` from outside: what is written, by its layout, and what is told.

    quantize_test.py PROGRAM TEST_DATA MODELS [unittest arguments]
"""
import glob
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, DATA, MODELS = sys.argv[1:4]
TINY = os.path.join(DATA, "models", "qwen3")
SHIPPED = os.path.join(MODELS, "dendrite-24")
HELDOUT = os.path.join(SHIPPED, "heldout.jsonl")


def run(*args, timeout=300):
    done = subprocess.run([PROGRAM, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def e4m3(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    value = math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)
    return -value if code & 128 else value


class Tensors:
    """A safetensors file."""

    def __init__(self, path):
        with open(path, "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            self.header = json.loads(file.read(size))
            self.data = file.read()
        self.header.pop("__metadata__")

    def type_and_shape(self, name):
        return self.header[name]["dtype"], self.header[name]["shape"]

    def numbers(self, name):
        begin, end = self.header[name]["data_offsets"]
        kind = self.header[name]["dtype"]
        code = {"BF16": "H", "F16": "e", "F32": "f", "I32": "I", "I64": "q", "I8": "b", "F8_E4M3": "B"}[kind]
        assert begin % struct.calcsize(code) == 0, f"{name} is not aligned"
        values = struct.unpack(f"<{(end - begin) // struct.calcsize(code)}{code}", self.data[begin:end])
        if kind in ("BF16", "F8_E4M3"):
            values = [bf16(value) if kind == "BF16" else e4m3(value) for value in values]
        return list(values)


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


class Quantize(Base):
    def quantize(self, kind, *args, model=TINY):
        out = self.path(kind)
        return out, self.json_of("quantize", "--model", model, "--format", kind, "--out", out, *args)

    def matrices(self):
        """Of each matrix of a layer its name, shape, and values."""
        plain = Tensors(os.path.join(TINY, "model.safetensors"))
        for name in plain.header:
            if name.endswith("_proj.weight"):
                yield name, plain.type_and_shape(name)[1], plain.numbers(name)

    def test_fp8_is_e4m3_with_a_scale_a_row(self):
        out, _ = self.quantize("fp8")
        packed = Tensors(os.path.join(out, "model.safetensors"))
        for name, (rows, cols), values in self.matrices():
            self.assertEqual(packed.type_and_shape(name), ("F8_E4M3", [rows, cols]))
            self.assertEqual(packed.type_and_shape(name + "_scale"), ("F32", [rows, 1]))
            scales, codes = packed.numbers(name + "_scale"), packed.numbers(name)
            for i, value in enumerate(values):
                scale = scales[i // cols]
                self.assertLessEqual(abs(codes[i] * scale - value), max(abs(value) / 15.8, scale / 1000))

    def test_int8_is_a_byte_with_a_scale_a_row(self):
        out, _ = self.quantize("int8")
        packed = Tensors(os.path.join(out, "model.safetensors"))
        for name, (rows, cols), values in self.matrices():
            self.assertEqual(packed.type_and_shape(name), ("I8", [rows, cols]))
            self.assertEqual(packed.type_and_shape(name + "_scale"), ("F32", [rows, 1]))
            scales, codes = packed.numbers(name + "_scale"), packed.numbers(name)
            for i, value in enumerate(values):
                scale = scales[i // cols]
                self.assertLessEqual(abs(codes[i] * scale - value), scale * 0.51)

    def test_int4_is_nibbles_with_a_scale_a_group(self):
        out, said = self.quantize("int4", "--group", 32)
        self.assertEqual(said["group"], 32)
        packed = Tensors(os.path.join(out, "model.safetensors"))
        left = {module + ".weight" for module in said["left"]}
        seen = 0
        for name, (rows, cols), values in self.matrices():
            if name in left:
                self.assertEqual(packed.numbers(name), values)
                continue
            seen += 1
            self.assertNotIn(name, packed.header)
            self.assertEqual(packed.type_and_shape(name + "_packed"), ("I32", [rows, cols // 8]))
            self.assertEqual(packed.type_and_shape(name + "_scale"), ("F16", [rows, cols // 32]))
            self.assertEqual(packed.numbers(name + "_shape"), [rows, cols])
            scales, words = packed.numbers(name + "_scale"), packed.numbers(name + "_packed")
            off = power = 0
            for i, value in enumerate(values):  # eight in a word, the first in its lowest bits
                got = ((words[i // 8] >> 4 * (i % 8) & 15) - 8) * scales[i // 32]
                off += (got - value) ** 2
                power += value ** 2
            self.assertLess(off, 0.012 * power, name)
        self.assertGreater(seen, 0)
        self.assertEqual(seen, said["matrices"])

    def test_what_it_costs_is_told(self):
        for kind, most in (("fp8", 0.005), ("int8", 0.005), ("int4", 0.02)):
            out, said = self.quantize(kind, "--text", HELDOUT, "--max-tokens", 1500, model=SHIPPED)
            self.assertEqual(said["format"], kind)
            measured = said["perplexity"]
            self.assertLess(abs(measured["ratio"] - 1), most)
            self.assertAlmostEqual(measured["ratio"], measured["after"] / measured["before"])
            for model, value in ((SHIPPED, measured["before"]), (out, measured["after"])):
                alone = self.json_of("perplexity", "--model", model, "--text", HELDOUT, "--max-tokens", 1500)
                self.assertEqual(alone["perplexity"], value)
                self.assertEqual(alone["tokens"], measured["tokens"])
            self.assertGreater(said["top1_agreement"], 0.95)
            self.assertLess(said["bits_a_weight"], 4.5 if kind == "int4" else 8.5)

    def test_without_a_text_nothing_is_measured(self):
        status, out, err = run("quantize", "--model", TINY, "--format", "int8", "--out", self.path("people"))
        self.assertEqual(status, 0, err)
        self.assertRegex(out, r"people: \d+ matrices in int8, \d+\.\d+ bits a weight in all\n")
        self.assertIn("--text", err)
        _, said = self.quantize("fp8")
        self.assertIsNone(said["perplexity"])
        self.assertIsNone(said["top1_agreement"])

    def test_a_quarter_of_the_calibration_is_measured_with(self):
        with open(HELDOUT) as file:
            lines = file.readlines()[:40]
        whole = self.write("whole.jsonl", "".join(lines))
        _, said = self.quantize("int4", "--calibration", whole, model=SHIPPED)
        self.assertGreater(said["inputs"], 0)
        held = self.write("held.jsonl", "".join(lines[-10:]))
        alone = self.json_of("perplexity", "--model", SHIPPED, "--text", held)
        self.assertEqual(said["perplexity"]["before"], alone["perplexity"])
        used = self.write("used.jsonl", "".join(lines[:-10]))
        again, other = self.path("again"), self.json_of(
            "quantize", "--model", SHIPPED, "--format", "int4", "--out", self.path("again"), "--calibration", used,
            "--text", held)
        self.assertEqual(other["calibration_tokens"], said["calibration_tokens"])
        for name in ("model.safetensors", "config.json"):
            with open(os.path.join(again, name), "rb") as one, open(self.path("int4/" + name), "rb") as two:
                self.assertEqual(one.read(), two.read())

    def test_ctrl_c_leaves_nothing(self):
        process = subprocess.Popen(
            [PROGRAM, "quantize", "--model", SHIPPED, "--format", "int4", "--out", self.path("out"), "--threads", "1",
             "--calibration", HELDOUT, "--kernels", "portable"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while process.poll() is None and not glob.glob(self.path(".out.partial-*")):
            time.sleep(0.01)
        time.sleep(0.1)
        self.assertIsNone(process.poll(), "it ended by itself")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        self.assertEqual((process.returncode, out), (130, b""), err)
        self.assertEqual(os.listdir(self.folder), [])

    def test_what_cannot_be_is_refused(self):
        out, _ = self.quantize("int8")
        self.assert_error("quantize", "--model", TINY, "--format", "fp8", "--out", out, part="is there already")
        self.assert_error("quantize", "--model", out, "--format", "fp8", "--out", self.path("twice"), part="int8 already")
        self.assert_error("quantize", "--model", TINY, "--format", "fp8", "--out", self.path("no/such"), part="no/such"[:2])
        self.assert_error("quantize", "--model", TINY, "--format", "int8", "--out", self.path("x"), "--group", 32,
                          part="group")
        self.assert_error("quantize", "--model", TINY, "--format", "int8", "--output-quantization", "int8", "--out",
                          self.path("x"), part="the embeddings give the logits")
        bare = os.path.join(DATA, "models", "qwen2")
        self.assert_error("quantize", "--model", bare, "--format", "fp8", "--out", self.path("x"), "--text", HELDOUT,
                          part="--text: " + bare + " has no tokenizer")
        self.assert_error("quantize", "--model", TINY, "--format", "int5", "--out", self.path("x"), part="int5", status=2)
        self.assert_error("quantize", "--model", TINY, "--format", "fp8", part="--out", status=2)
        self.assertEqual(os.listdir(self.folder), ["int8"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
