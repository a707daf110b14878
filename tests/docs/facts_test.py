"""What the documents say of the sources is so: names that they use exist, and numbers that would drift.

    facts_test.py [unittest arguments]
"""
import functools
import hashlib
import json
import math
import re
import struct
import tomllib
import unittest

from pages import PAGES, ROOT

SOURCES = ("src", "include", "cli", "server", "bench", "python", "bridge/src", "tools", "tests", "fuzz", "scripts", "cmake",
           "examples", "packaging", ".github", ".ci")
KINDS = (".h", ".cpp", ".cu", ".cuh", ".inl", ".py", ".rs", ".sh", ".txt", ".toml", ".cmake", ".md", ".json", ".yml",
         ".html", ".lark", "")
FILE = r"[\w./-]+\.(?:h|cpp|cu|cuh|inl|py|rs|sh|txt|md|cmake|yml|toml|html)"
NAME = re.compile(r"(?<![\w./-])[A-Za-z_]\w*(?:::\w+)+"  # A::b
                  r"|(?<![\w./~-])[A-Z][a-z]\w*[A-Z]\w*"  # TwoWords
                  r"|(?<![\w./|-])[a-z]\w*_\w+(?![\w./*-])"  # two_words
                  r"|DENDRITE_\w+(?!\w|\*)")
# Names of others, of examples of names, and parts of names.
FOREIGN = {"ChatOpenAI", "stream_mode", "PascalCase", "snake_case", "kPascalCase", "add_NAME", "keep_alive", "arch_prctl",
           "DENDRITE_LOG_", "ddtree_budget"}


@functools.cache
def files():
    """All, from the root; and without the folders that texts leave out."""
    found = {path.relative_to(ROOT).as_posix() for folder in (*SOURCES, "docs", "models", "bridge")
             for path in (ROOT / folder).rglob("*") if path.is_file()}
    return found | {path.name for path in ROOT.iterdir()}


@functools.cache
def words():
    found = set()
    for name in files():
        path = ROOT / name
        if path.is_file() and path.suffix in KINDS and path.suffix != ".md" and path.stat().st_size < 400_000:
            found.update(re.findall(r"[A-Za-z_]\w*", path.read_text(errors="ignore")))
    return found


def read(name):
    return (ROOT / name).read_text()


class FactsTest(unittest.TestCase):
    def test_names_are_those_of_the_sources(self):
        ends = "\n".join(f"/{name}" for name in files()) + "\n"
        for page in [*PAGES, *sorted((ROOT / "docs/decisions").glob("*.md"))]:
            text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
            for span in re.findall(r"`([^`]+)`", text):
                code = " ".join(span.split())
                missing = [part for name in NAME.findall(code) for part in name.split("::")
                           if part not in words() and part not in FOREIGN]
                if re.fullmatch(FILE, code) and "NAME" not in code and f"/{code}\n" not in ends:
                    missing.append(code)
                self.assertEqual(missing, [], f"{page.relative_to(ROOT)}: `{code}`")

    def test_links_lead_somewhere(self):
        for page in [*PAGES, *sorted((ROOT / "docs/decisions").glob("*.md"))]:
            for link in re.findall(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
                self.assertTrue((page.parent / link).exists(), f"{page.relative_to(ROOT)}: {link}")

    def test_cards_have_the_number_of_parameters(self):
        for card in sorted((ROOT / "models").glob("*/README.md")):
            with open(card.parent / "model.safetensors", "rb") as file:
                header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
            count = sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
            self.assertIn(f"{count:,} parameters", card.read_text())

    def test_readme_names_all_models_families_adapters_and_extras(self):
        readme = read("README.md")
        for folder in (ROOT / "models").glob("dendrite-*"):
            self.assertIn(f"{folder.name}", readme)
        table = read("src/model/families.cpp").partition("kFamilies[] = {")[2]
        types = set(re.findall(r'^ +(?:\{\.model_type = |\w+\()"(\w+)"', table, re.M))
        page = read("docs/families.md")
        rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
        self.assertEqual({name for row in rows for name in re.findall(r"`(\w+)`", row)}, types)
        self.assertIn(f"| model families | [{len(rows)}](docs/families.md) |", readme)
        extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
        for extra in extras:
            self.assertRegex(readme, rf"`{extra}`|\[{extra}\]")
        for adapter in (ROOT / "python/dendrite/adapters").glob("[a-z]*.py"):
            self.assertIn(adapter.stem.replace("_", "-"), extras)

    def test_readme_has_the_packages_that_are_installed(self):
        script = read("scripts/install_deps.sh")
        installed = set(re.search(r'^packages="(.*)"', script, re.M)[1].split())
        installed |= set(re.search(r'python\) packages="\$packages (.*)" ;;', script)[1].split())
        for packages in re.findall(r"`apt-get install ([^`]+)`", read("README.md")):
            self.assertLessEqual(set(packages.split()), installed)

    def test_the_page_of_snapshots_is_of_their_version(self):
        version = re.search(r"kSnapshotVersion = (\d+)", read("src/io/snapshot_format.h"))[1]
        self.assertIn(f"# Snapshot files, version {version}\n", read("docs/formats/snapshot.md"))
        for said in re.findall(r"Snapshots? (?:files )?are (?:of )?version (\d+)", read("CHANGELOG.md")):
            self.assertEqual(said, version)

    def test_what_is_said_of_estimates_is_what_they_are_scaled_by(self):
        record = read("src/engine/branches/kl_record.h")
        usual, fewest, ratios = (re.search(rf"{name} = (\d+);", record)[1] for name in ("kUsual", "kFewest", "kRatios"))
        self.assertIn(f"last {ratios} audits found no more; {usual} before the first {fewest}.", read("include/dendrite/stats.h"))
        self.assertIn(f"times {usual}, and from {fewest} audits", read("src/engine/context/README.md"))

    def test_third_party_has_the_crates_of_the_lock(self):
        locked = set(re.findall(r'name = "([^"]+)"\nversion = "([^"]+)"', read("bridge/Cargo.lock")))
        shown = re.findall(r"^\| ([\w-]+) \| (\d[\w.+-]*) \| .", read("THIRD_PARTY.md"), re.M)
        self.assertGreater(len(shown), 50)
        self.assertLessEqual(set(shown), locked)
        named = {name for name, _ in shown}
        for direct in re.findall(r"^([\w-]+) = ", read("bridge/Cargo.toml").split("[dependencies]")[1].split("[")[0], re.M):
            self.assertIn(direct, named | {"serde"})

    def test_models_and_goldens_are_those_that_were_pinned(self):
        pins = dict(reversed(line.split("  ", 1)) for line in read("tests/data/models/SHA256SUMS").splitlines())
        goldens = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/data/models").rglob("*.*")}
        self.assertLessEqual(goldens, set(pins), "python3 tools/golden/models/pins.py writes them")
        for name, pin in pins.items():
            self.assertEqual(hashlib.sha256((ROOT / name).read_bytes()).hexdigest(), pin, name)


if __name__ == "__main__":
    unittest.main()
