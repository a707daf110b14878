#!/usr/bin/env python3
"""Writes THIRD_PARTY.md: what Dendrite's library and packages have in them of others, and its licences.

    tools/third_party.py            writes the page
    tools/third_party.py --check    says whether the page is what bridge/Cargo.lock gives

Needs cargo, and the crates that a build has downloaded.
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "THIRD_PARTY.md"
# What may be part of a program of any licence. Another one is a decision, not a line of this table.
PERMISSIVE = {"MIT", "MIT-0", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "Zlib", "Unicode-3.0", "ISC"}

HEAD = """# Software of others

Dendrite is under the [MIT licence](LICENSE). What its library, its programs and its Python packages use of others, by
`tools/third_party.py`; a test compares this page with `bridge/Cargo.lock`. All of it may be used in programs of any
licence, but for NVIDIA's, which has terms of its own. The texts of the licences are in each project's sources; a source
distribution (`scripts/package.sh sdist`) carries those of the crates.

| | licence | where it is |
| --- | --- | --- |
| [oneTBB](https://github.com/uxlfoundation/oneTBB) | Apache-2.0 | the system's library; in the Python wheel |
| [nlohmann-json](https://github.com/nlohmann/json) | MIT | headers, in the library |
| [xxHash](https://github.com/Cyan4973/xxHash) | BSD-2-Clause | one header, in the library |
| [CLI11](https://github.com/CLIUtils/CLI11) | BSD-3-Clause | headers, in the programs |
| [Boost](https://www.boost.org) (Beast, Asio) | BSL-1.0 | headers, in the program `dendrite`, where it serves |
| [nanobind](https://github.com/wjakob/nanobind) and nanobind-backend | BSD-3-Clause | in the Python module; a package beside it |
| [numpy](https://numpy.org) | BSD-3-Clause | a package beside the Python one |
| libstdc++ | GPL-3.0 with the Runtime Library Exception | the system's library |
| CUDA runtime, cuBLASLt | NVIDIA's CUDA EULA | builds for GPUs: linked in, and a library beside it |
| [GoogleTest](https://github.com/google/googletest) | BSD-3-Clause | tests |
| [FlashInfer](https://github.com/flashinfer-ai/flashinfer) | Apache-2.0 | one bench, where it is asked for; downloaded, not in the repository |

The models in `models/` and the tiny ones in `tests/data/` were made by programs of this repository, from data that these
make: they are under its licence.

## Crates

Linked into the library, on x86-64 and 64-bit Arm. llguidance, which constrains output, and toktrie are under the MIT
licence; tokenizers and minijinja under Apache-2.0.

| crate | version | licence |
| --- | --- | --- |
"""


def crates():
    """(name, version, licence) of what is linked."""
    found = set()
    for target in ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"):
        command = ["cargo", "tree", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none",
                   "--target", target, "--format", "{p}|{l}"]
        done = subprocess.run(command, cwd=ROOT / "bridge", capture_output=True, text=True,
                              env=dict(os.environ, CARGO_TERM_COLOR="never"))
        if done.returncode != 0:
            sys.exit(f"third_party: {' '.join(command)}: {done.stderr}")
        for line in done.stdout.splitlines():
            package, licence = re.sub(r" \(\*\)$", "", line).split("|")
            name, version = re.match(r"(\S+) v(\S+)", package).groups()
            if name != "dendrite_bridge":
                found.add((name, version, licence.replace("/", " OR ").replace("  ", " ")))
    return sorted(found)


def refused(licence):
    """Whether no choice that the licence leaves is permissive throughout."""
    choices = re.split(r" OR ", licence) if "AND" not in licence else [licence]
    return not any(set(re.findall(r"[\w.-]+", choice)) - {"AND", "OR"} <= PERMISSIVE for choice in choices)


def main():
    rows = crates()
    if wrong := [row for row in rows if refused(row[2])]:
        sys.exit(f"third_party: {wrong}: expected licences of {sorted(PERMISSIVE)}")
    page = HEAD + "".join(f"| {name} | {version} | {licence} |\n" for name, version, licence in rows)
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text() != page:
            sys.exit("third_party: THIRD_PARTY.md is not what bridge/Cargo.lock gives; run tools/third_party.py")
    else:
        PAGE.write_text(page)


main()
