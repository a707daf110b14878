#!/usr/bin/env python3
"""Checks every #include of the tree against the layer table in docs/architecture.md.

The table is the one between the markers `<!-- layers -->` and `<!-- /layers -->`; its rows are
`| room | may include | its one job |`. A room is a folder (`core` means src/core, `backend/cuda` the
folder in it, which is then no part of `backend`, and so on down), `may include` a list of rooms, `include/dendrite`
(the public API), `anything`, or `–`: nothing. What is wrong:

  an include that the table does not grant, or rooms that include each other
  a grant that no include uses: it is to be taken back
  an arrow of the picture above the table that it does not grant
  a circle of more than three units in a room. A unit is a header with its sources: x.cpp, and every
    other of the room that defines a function of one of its classes. Who is in a circle cannot be
    read, tested or replaced without all others of it. An object and who owns it need each other.

Exit status 1 and a line for each otherwise.
"""
import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<(dendrite/[^>]+)>)')
SOURCES = {".h", ".cpp", ".inl", ".cu", ".cuh"}
MOST_IN_CIRCLE = 3
# A function that is defined outside of its class, and a class: where a line begins.
MEMBER = re.compile(r"^(?:[A-Za-z][\w:<>,&*\[\] ]*[\s&*])?((?:[A-Z]\w*::)+)~?\w+\s*\(", re.M)
CLASS = re.compile(r"^(?:class|struct)\s+(?:[A-Z_]+\s+)?(\w+)(?:\s+final)?\s*(?::[^;{]*)?\{", re.M)
TOPS = ("include", "src", "cli", "server", "bench", "examples", "tests", "fuzz", "python")


def read_table(root):
    text = (root / "docs/architecture.md").read_text(encoding="utf-8")
    match = re.search(r"<!-- layers -->(.*?)<!-- /layers -->", text, re.S)
    if not match:
        sys.exit("check_layers: docs/architecture.md has no <!-- layers --> table")
    rules = {}
    for line in match.group(1).splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        if len(cells) < 2 or cells[0] in ("room", "") or set(cells[0]) <= set("-: "):
            continue
        allowed = {word.strip().strip("`") for word in cells[1].split(",")} - {"–"}
        for room in cells[0].split(","):
            rules[room.strip().strip("`")] = allowed
    return rules


def read_picture(root):
    """The arrows between rooms in the picture above the table."""
    text = (root / "docs/architecture.md").read_text(encoding="utf-8").partition("<!-- layers -->")[0]
    picture = text.rpartition("```mermaid")[2].partition("```")[0]
    names = dict(re.findall(r'^\s*(\w+)\["([^"]+)"\]', picture, re.M))
    arrows = re.findall(r"^\s*(\w+) --> (\w+)", picture, re.M)
    return [tuple(names.get(end, end).split()[0] for end in arrow) for arrow in arrows]


class Tree:
    """The sources below `root`, and which of them include which."""

    def __init__(self, root, rooms):
        self.root = root.resolve()
        self.rooms = rooms
        self.bases = [self.root / base for base in ("src", "include", "cli", "bridge", "")]
        self.files = [path for top in TOPS for path in sorted((self.root / top).rglob("*"))
                      if path.suffix in SOURCES]
        self.units = self.find_units()

    def find_units(self):
        """The unit of each file, by its name: that of the header in its room whose classes it defines
        functions of, else its own. Files that define such of several headers join those."""
        above = {}

        def top(unit):
            while above.setdefault(unit, unit) != unit:
                unit = above[unit]
            return unit

        headers = collections.defaultdict(set)
        for path in self.files:
            if path.suffix == ".h":
                for name in CLASS.findall(path.read_text(encoding="utf-8")):
                    headers[self.room_of(path), name].add(path)
        for path in self.files:
            if path.suffix != ".cpp":
                continue
            for names in MEMBER.findall(path.read_text(encoding="utf-8")):
                for header in headers.get((self.room_of(path), names.split("::")[0]), ()):
                    above[top(self.own_unit(path))] = top(self.own_unit(header))
        return {path: top(self.own_unit(path)) for path in self.files}

    def room_of(self, path):
        parts = path.relative_to(self.root).parts
        if parts[0] == "include":
            return "include/dendrite"
        if parts[0] != "src":
            return parts[0]
        folders = ["/".join(parts[1:end]) for end in range(len(parts) - 1, 1, -1)]
        return next((folder for folder in folders if folder in self.rooms), parts[1])

    def own_unit(self, path):
        unit = path.relative_to(self.root).with_suffix("").as_posix()
        return unit.removeprefix("src/").removeprefix("include/")

    def includes(self):
        """(file, line number, file that it includes), of those that are ours."""
        for path in self.files:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                target = self.find(path, match.group(1) or match.group(2)) if match else None
                if target is not None:
                    yield path, number, target

    def find(self, path, name):
        for base in (path.parent, *self.bases):
            candidate = (base / name).resolve()
            if candidate.is_file() and self.root in candidate.parents:
                return candidate
        return None


def circles(graph):
    """The strongly connected components of two nodes and more (Tarjan), sorted inside."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def check(root=ROOT):
    """What is wrong, a line each, and a sentence about the rest."""
    rules = read_table(root)
    tree = Tree(root, rules)
    problems = []
    for room in sorted({tree.room_of(path) for path in tree.files} - set(rules)):
        problems.append(f"room `{room}` is not in the table")

    rooms, units = collections.defaultdict(set), collections.defaultdict(set)
    for path, number, included in tree.includes():
        room, target = tree.room_of(path), tree.room_of(included)
        if room == target:
            if tree.units[path] != tree.units[included]:
                units[tree.units[path]].add(tree.units[included])
            continue
        rooms[room].add(target)
        if room in rules and not rules[room] & {"anything", target}:
            problems.append(
                f"{path.relative_to(tree.root)}:{number}: `{room}` may not include `{target}`")

    for room, allowed in rules.items():
        for target in sorted(allowed - rooms[room] - {"anything"}):
            problems.append(f"`{room}` does not include `{target}`: take the grant back")
    for room, target in read_picture(root):
        if room in rules and target not in rules[room]:
            problems.append(f"the picture has {room} --> {target}, which the table does not grant")
    for circle in circles(rooms):
        problems.append("rooms include each other: " + ", ".join(circle))

    found = circles(units)
    for circle in found:
        if len(circle) > MOST_IN_CIRCLE:
            problems.append(f"{len(circle)} units in a circle:")
            for unit in circle:
                others = sorted(units[unit].intersection(circle) - {unit})
                problems.append(f"  {unit} -> {', '.join(others)}")

    largest = max(found, key=len, default=[])
    size = f"{len(largest)} units ({', '.join(largest)})" if largest else "none"
    return problems, f"layers: {len(rules)} rooms, includes and grants agree; largest circle: {size}"


def main():
    problems, summary = check()
    print("\n".join(problems) if problems else summary)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
