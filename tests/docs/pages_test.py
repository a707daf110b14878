"""What the documents show works: commands run on the shipped models, C++ compiles, names exist.

    pages_test.py BUILD COMPILER [unittest arguments]

Every line of every `sh` block either runs here, or is listed in ELSEWHERE with the reason why not. Blocks of
Python run in python/tests (test_cookbook.py, test_readme.py).
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest

from pages import PAGES, ROOT, blocks, commands, inline_commands

BUILD, COMPILER = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
BIN = BUILD / "bin"

# Lines that do not run here: a regular expression that matches the whole line, and why. What they name (files,
# options, presets, targets, extras) is checked all the same.
ELSEWHERE = [
    (r"make (demo|test|build|format|check)", "CI runs it whole (.ci/run); here it is the caller"),
    (r"make serve", "serves until it is told to end; test_server"),
    (r"scripts/install_deps\.sh", "needs root; CI runs it"),
    (r"(cmake --preset \w+ && )?cmake --build .*", "minutes of building; CI does"),
    (r"cmake --preset (asan|cuda) .*", "minutes of building; CI does"),
    (r"cmake --install build --prefix /usr/local", "the test package.consumer, into another prefix"),
    (r"pip install \.", "minutes; python/tests/run.sh installs the wheel"),
    (r"python -m dendrite solve 4 9 10 13", "needs the package; python/tests/test_main.py"),
    (r"python python/examples/code_repair\.py .*", "needs the package; python/tests/test_code_repair.py"),
    (r"build-cuda/bin/.*", "needs a GPU"),
    (r"bench/serve(\.sh|/\w+\.py) .*|bench/serve/limits\.py", "minutes, and other servers; tests/bench/serve_test.py"),
    (r"build/bin/dendrite-bench agents --work callers --shape 135m", "minutes"),
    (r"(/tmp/golden/|python3\.11 -m venv|P=|\$P ).*", "gigabytes of PyTorch"),
    (r"python3 tools/train/evaluate\.py .*", "PyTorch"),
    (r"g\+\+ .*", "a minute of compiling; tools/train/test_*.py"),
    (r"/tmp/generate_context .*", "the program of the line before"),
]

# What stands for something of the reader's, and what would take minutes or a display: (line, what, instead).
INSTEAD = [
    (r".*", "DIR_OR_ID", str(ROOT / "models/dendrite-24")),
    (r".*", "--json-schema FILE", "--json-schema schema.json --max-tokens 64"),
    (r"dendrite chat .*", "--context 8192", "--context 512"),
    (r"dendrite trace view .*", " --open", ""),
    (r"dendrite (quantize|perplexity) .*", "models/dendrite-24/heldout.jsonl", "few.jsonl"),
    (r"dendrite generate --prompt \"…\".*", "…", "S 24: 4 5 6 10"),
    (r"build/bin/dendrite-bench compose-quality .*", "/tmp/questions.jsonl", "models/dendrite-compose/heldout.jsonl"),
    (r"build/bin/dendrite-bench agents", "agents", "agents --agents 1,2 --length 8 --trials 1 --modes joined,turns"),
    (r"build/bin/example_code_repair --model .*", "check.py", "examples/check_derivation.py"),
    (r"build/bin/example_code_repair --model .*", "--prompt-template fix.txt ", ""),
    (r"build/bin/example_code_repair --model .*", "broken.py", "examples/data/wrong_product.24"),
]

# What people may be told to install from an index.
FROM_INDEX = {"tqdm", "torch", "transformers"}

# Around a piece of C++ that shows some calls: what it takes as given.
PRELUDE = """#include <dendrite/dendrite.h>
using namespace dendrite;
void shown(Session& session, Branch& branch, std::vector<Branch>& branches, const std::string& schema,
           const std::string& model, const std::string& smaller, const std::string& dflash) {
"""


def matching(table, line):
    return [row for row in table if re.fullmatch(row[0], line)]


class PagesTest(unittest.TestCase):
    def test_blocks_say_what_they_are(self):
        for page in PAGES:
            for block in blocks(page):
                self.assertIn(block.kind, ("sh", "text", "cpp", "cmake", "python", "pycon", "mermaid"),
                              f"{block.page}:{block.line}")

    def test_commands_run(self):
        listed, replaced = set(), set()
        for page in PAGES:
            with tempfile.TemporaryDirectory(prefix="dendrite-pages-") as folder:
                self.furnish(pathlib.Path(folder))
                for command in commands(page):
                    if found := matching(ELSEWHERE, command.text):
                        listed.update(row[0] for row in found)
                        continue
                    text = command.text
                    for row in matching(INSTEAD, command.text):
                        if row[1] in text:
                            replaced.add(row)
                            text = text.replace(row[1], row[2])
                    with self.subTest(str(command)):
                        self.run_line(text, folder)
        self.assertEqual([row[0] for row in ELSEWHERE if row[0] not in listed], [], "listed, but on no page")
        self.assertEqual([row for row in INSTEAD if row not in replaced], [], "replaced on no page")

    def furnish(self, folder):
        """A folder like the repository's root, in which what a line writes does no harm."""
        for entry in ROOT.iterdir():
            if not entry.name.startswith("build"):
                (folder / entry.name).symlink_to(entry)
        (folder / "build").symlink_to(BUILD)
        (folder / "schema.json").write_text(json.dumps({"enum": ["yes", "no"]}))
        for name in ("doc1.txt", "doc2.txt"):
            (folder / name).write_text(f"This is {name}.\n")
        texts = (ROOT / "models/dendrite-24/heldout.jsonl").read_text().splitlines(keepends=True)
        (folder / "few.jsonl").write_text("".join(texts[:20]))

    def run_line(self, text, folder):
        environment = dict(os.environ, PATH=f"{BIN}:{os.environ['PATH']}", CXX=COMPILER)
        environment.pop("DENDRITE_MODELS", None)
        done = subprocess.run(["bash", "-c", text], cwd=folder, env=environment, input=b"4 6\n",
                              capture_output=True, timeout=400)
        self.assertEqual(done.returncode, 0, f"{text}\n{(done.stdout + done.stderr)[-2000:].decode(errors='replace')}")

    def test_what_commands_name_is_there(self):
        presets = {preset["name"] for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
        for page in PAGES:
            for command in [*commands(page), *inline_commands(page)]:
                with self.subTest(str(command)):
                    for preset in re.findall(r"--preset (\w+)", command.text):
                        self.assertIn(preset, presets)
                    read = re.sub(r"--json \S+", "", command.text)  # which it writes
                    for path in re.findall(r"(?<![\w/.-])(?:scripts|tools|bench|examples|models|python)/[\w./-]+", read):
                        self.assertTrue("NAME" in path or (ROOT / path).exists(), path)
                    if found := re.match(r"make ([a-z-]+)", command.text):
                        self.assertIn(found[1], targets)
                    for arguments in re.findall(r"pip install ([^&|;]+)", command.text):
                        self.check_pip(arguments)
                    if found := re.match(r"(?:build(?:-\w+)?/bin/)?(dendrite(?:-\w+)?) (\w[\w-]*)?(.*)", command.text):
                        self.check_options(*found.groups())

    def check_options(self, program, subcommand, rest):
        """A program's options are in its help."""
        options = set(re.findall(r"(?<=\s)--[a-z][\w-]*", rest)) - {"--help", "--device"}
        if not options or program == "dendrite-cuda" or not (BIN / program).exists():
            return
        words = [subcommand] if subcommand else []
        if program == "dendrite" and subcommand == "trace":
            words += rest.split()[:1]
        help_text = subprocess.run([BIN / program, *words, "--help"], capture_output=True, timeout=60).stdout.decode()
        for option in options if "not in this build" not in help_text else ():
            self.assertRegex(help_text, rf"{option}\b")

    def check_pip(self, arguments):
        """What pip is told to install is in a clone, and nothing that an index would have to have."""
        for name in re.findall(r'"[^"]+"|[^\s"]+', arguments.strip()):
            name = name.strip('"')
            if name.startswith("-"):
                continue
            if found := re.fullmatch(r"\.(\[([\w,-]+)\])?", name):
                project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
                for extra in filter(None, (found[2] or "").split(",")):
                    self.assertIn(extra, project["optional-dependencies"])
            elif name not in FROM_INDEX:
                self.assertTrue((ROOT / name).exists(), f"pip install {name}")
                if (ROOT / name).is_dir():
                    self.assertTrue((ROOT / name / "pyproject.toml").exists(), name)

    def test_what_the_package_tells_to_install_is_there(self):
        found = 0
        for source in sorted((ROOT / "python/dendrite").rglob("*.py")):
            for arguments in re.findall(r'pip install ((?:(?:"[^"\n]+"|[\w./{}-]+) ?)+)', source.read_text()):
                with self.subTest(f"{source.name}: {arguments}"):
                    self.check_pip(arguments.replace("{kind}", "cuda"))
                    found += 1
        self.assertGreater(found, 8)

    def test_extras_take_the_versions_that_are_tested(self):
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        pins = {}
        for file in [*(ROOT / "python/tests/adapters").glob("*.txt"), ROOT / "python/tests/pool/ray.txt"]:  # trl's is in a comment
            for name, version in re.findall(r"(?:^|with )([\w.-]+)(?:\[[\w,]+\])?==(\d[\d.]*\d)", file.read_text(), re.M):
                pins.setdefault(re.sub(r"[-_.]+", "-", name).lower(), []).append(version)

        def key(version):
            return [int(part) for part in version.split(".") if part]
        for extra, requirements in extras.items():
            for requirement in requirements:
                name, least, below = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:,<([\d.]+))?", requirement).groups()
                name = re.sub(r"[-_.]+", "-", name).lower()
                if name == "tqdm":
                    continue  # any
                self.assertIn(name, pins, extra)
                for version in pins[name]:
                    self.assertLessEqual(key(least), key(version), requirement)
                    self.assertLess(key(version), key(below), requirement)

    def test_cpp_is_quoted_or_compiles(self):
        sources = [path.read_text() for folder in ("examples", "include", "src")
                   for path in (ROOT / folder).rglob("*") if path.suffix in (".cpp", ".h")]
        pieces = [block for page in PAGES for block in blocks(page) if block.kind == "cpp"]
        self.assertTrue(pieces)
        indented = re.compile(r"^  +", re.M)
        shown = [block for block in pieces
                 if not any(indented.sub("", block.text.strip()) in indented.sub("", text) for text in sources)]
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "shown.cpp"
            body = "".join("{\n%s}\n" % block.text for block in shown)
            file.write_text(f"{PRELUDE}{body}}}\n")
            done = subprocess.run([COMPILER, "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'include'}", file],
                                  capture_output=True, timeout=400)
            self.assertEqual(done.returncode, 0, done.stderr.decode() + file.read_text())


if __name__ == "__main__":
    if shutil.which("bash") is None:
        sys.exit("pages_test: expected bash")
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
