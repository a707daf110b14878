"""What the tests share: skipping without a module, and a generator that is built once a class."""

import importlib.util
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
MODELS = HERE.parent.parent / "models"
sys.path.insert(0, str(HERE))


def needs(*modules):
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    return unittest.skipIf(missing, f"needs {' '.join(missing)}")


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
