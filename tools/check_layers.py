#!/usr/bin/env python3
"""Checks every #include of the tree against the layer table in docs/architecture.md.

The table is the one between the markers `<!-- layers -->` and `<!-- /layers -->`; its rows are
`| room | may include | its one job |`. A room is a folder (`core` means src/core), `may include` a list
of rooms, `include/dendrite` (the public API) or `anything`. Exit status 1 and a line a violation
otherwise.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
SOURCES = {".h", ".cpp", ".cu", ".cuh"}


def read_table():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    match = re.search(r"<!-- layers -->(.*?)<!-- /layers -->", text, re.S)
    if not match:
        sys.exit("check_layers: docs/architecture.md has no <!-- layers --> table")
    rules = {}
    for line in match.group(1).splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        if len(cells) < 2 or cells[0] in ("room", "") or set(cells[0]) <= set("-: "):
            continue
        allowed = {word.strip().strip("`") for word in cells[1].split(",")}
        for room in cells[0].split(","):
            rules[room.strip().strip("`")] = allowed
    return rules


def room_of(path):
    parts = path.relative_to(ROOT).parts
    if parts[0] == "src":
        return parts[1]
    if parts[0] == "include":
        return "include/dendrite"
    return parts[0]


def included_room(path, target):
    """The room that `target`, included from `path`, belongs to; None for what is not ours."""
    for base in (path.parent, ROOT / "src", ROOT / "include", ROOT / "cli", ROOT / "bridge", ROOT):
        candidate = (base / target).resolve()
        if candidate.is_file() and ROOT in candidate.parents:
            return room_of(candidate)
    return None


def main():
    rules = read_table()
    problems = []
    edges = {}
    for top in ("include", "src", "cli", "bench", "examples", "tests", "fuzz"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix not in SOURCES:
                continue
            room = room_of(path)
            allowed = rules.get(room)
            if allowed is None:
                problems.append(f"{path.relative_to(ROOT)}: room `{room}` is not in the table")
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                target = included_room(path, match.group(1)) if match else None
                if target is None or target == room:
                    continue
                edges.setdefault(room, set()).add(target)
                if "anything" not in allowed and target not in allowed:
                    problems.append(
                        f"{path.relative_to(ROOT)}:{number}: `{room}` may not include `{target}`"
                    )
    for room, targets in edges.items():
        for target in targets:
            if room < target and room in edges.get(target, ()):
                problems.append(f"`{room}` and `{target}` include each other")
    for problem in problems:
        print(problem)
    if problems:
        sys.exit(1)
    print(f"layers: {len(rules)} rooms, all includes allowed")


if __name__ == "__main__":
    main()
