"""What the documents show: fenced blocks and the commands in them."""
import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted({ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "bench/RESULTS.md", *(
    page for places in ("docs/*.md", "docs/cookbook/*.md", "models/*/README.md", "tools/*/README.md",
                        "bench/results/README.md", "bench/README.md", "python/README.md", "examples/README.md",
                        "fuzz/README.md", "server/README.md", "src/**/README.md") for page in ROOT.glob(places))})


@dataclasses.dataclass
class Block:
    page: str  # from the repository's root
    line: int  # of its first line
    kind: str  # what stands behind the three backquotes
    text: str


@dataclasses.dataclass
class Command:
    page: str
    line: int
    text: str  # without its comment, on one line

    def __str__(self):
        return f"{self.page}:{self.line}: {self.text}"


def blocks(page):
    found, inside = [], False
    name = page.relative_to(ROOT).as_posix()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            inside = not inside
            if inside:
                found.append(Block(name, number + 1, line[3:].strip(), ""))
        elif inside:
            found[-1].text += line + "\n"
    return found


def commands(page):
    """Of its `sh` blocks."""
    found = []
    for block in blocks(page):
        if block.kind != "sh":
            continue
        pieces, begin = [], 0
        for number, line in enumerate(block.text.splitlines(), block.line):
            line = re.sub(r"(^|\s)# .*$", "", line).rstrip()
            begin = begin if pieces else number
            pieces.append(line.rstrip("\\").strip())
            if not line.endswith("\\"):
                if text := " ".join(pieces).strip():
                    found.append(Command(block.page, begin, text))
                pieces = []
    return found


STARTS = re.compile(r"(pip|make|cmake|ctest|pytest|python3?|dendrite|dendrite-\w+|build(-\w+)?/\S+"
                    r"|(scripts|tools|bench)/\S+)( |$)")


def inline_commands(page):
    """Commands in the text itself: what begins with a program's name, between backquotes."""
    text = page.read_text()
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.S | re.M)
    name = page.relative_to(ROOT).as_posix()
    return [Command(name, text.count("\n", 0, span.start()) + 1, " ".join(span[1].split()))
            for span in re.finditer(r"`([^`]+)`", text) if STARTS.match(span[1])]
