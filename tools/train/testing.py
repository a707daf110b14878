"""What the tests share: skipping without a module, a generator that is built once a class, and reading what it writes."""

import importlib.util
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE.parent.parent / "models"
sys.path.insert(0, str(HERE))

import tokenizer  # noqa: E402 - beside this


def needs(*modules):
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    return unittest.skipIf(missing, f"needs {' '.join(missing)}")


def mixed_hash(text):
    """hash_of of random.h."""
    mask = (1 << 64) - 1
    x = 0xCBF29CE484222325
    for byte in text.encode():
        x = (x ^ byte) * 0x100000001B3 & mask
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & mask
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & mask
    return x ^ x >> 33


def documents_of_rows(data, row_tokens, ids):
    """The values of each document of each row that `rows` wrote, without padding; `ids`: the bits that are a token."""
    values = struct.unpack(f"<{len(data) // 2}H", data)
    for at in range(0, len(values), row_tokens):
        row = values[at:at + row_tokens]
        starts = [i for i, v in enumerate(row) if v & ids == tokenizer.BOS] + [len(row)]
        assert starts[0] == 0, row[0]
        yield [[v for v in row[a:b] if v & ids != tokenizer.PAD] for a, b in zip(starts, starts[1:])]


class GeneratorTestCase(unittest.TestCase):
    SOURCE = None  # of the generator

    @classmethod
    def setUpClass(cls):
        if shutil.which("g++") is None:
            raise unittest.SkipTest("needs g++")
        cls.folder = tempfile.TemporaryDirectory()
        cls.program = f"{cls.folder.name}/generate"
        subprocess.run(["g++", "-O2", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-pthread",
                        HERE / cls.SOURCE, "-o", cls.program], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def generate(self, *arguments):
        return subprocess.run([self.program, *map(str, arguments)], check=True, capture_output=True).stdout

    def documents_of(self, *arguments):
        """(text, what of it is learnt, whether <eos> follows) of each document that `docs` prints."""
        for row in self.generate("docs", *arguments).decode().splitlines():
            learnt_from, ends, text = row.split("\t")
            text = text.replace("\\n", "\n")
            yield text, text[int(learnt_from):], ends == "1"

    def assert_refuses(self, arguments, name):
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn(name, done.stderr)
