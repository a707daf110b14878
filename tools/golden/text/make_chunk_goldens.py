#!/usr/bin/env python3
"""Writes tests/data/text/chunks.json: texts of chunks, what Python makes of them, and digests.

    python tools/golden/text/make_chunk_goldens.py

The standard library alone; Python 3.11 wrote what is committed.
"""

import hashlib
import json
import random
import struct
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parents[3] / "tests/data/text/chunks.json"


def normalise(text):
    return text.strip().replace("\r\n", "\n")


def digest(data):
    return hashlib.sha256(data).hexdigest()


def texts():
    spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    assert len(spaces) == 29
    yield from ["  Hello\r\nWorld \u00a0\n", "a", "a\r\nb\r\n", "\r\na\rb\r", "a\r\r\nb", "a\n\r\nb", "a\r\n\r\nb",
                "  two  words ", "\ufeffmark\ufeff", " \ufeff ", "\u200bzero width\u200b", "\u180eold space\u180e",
                "e\u0301 \u00e9", "\0 nul \0", "\u2028lines\u2029", "\u4f60\u597d\u3000", "\U0001f333 tree ",
                "\u0080\u0084\u0086", "\u200f\u2010", "".join(spaces) + "x" + "".join(spaces)]
    for space in spaces:
        yield f"{space}x{space}y{space}"
    rng = random.Random(1)
    pieces = spaces + ["\r\n", "\r", "\n", "x", "yz", "\u00df", "\u4f60", "\ufeff", "\U0001f333"]
    for _ in range(100):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 12)))
        if normalise(text):
            yield text


def every_character():
    """Each character around an x, normalised, a line each."""
    hashed = hashlib.sha256()
    for code in range(sys.maxunicode + 1):
        if not 0xd800 <= code <= 0xdfff:
            hashed.update(normalise(f"{chr(code)}x{chr(code)}").encode() + b"\n")
    return hashed.hexdigest()


def main():
    golden = {"texts": [[text, normalise(text), digest(normalise(text).encode())] for text in texts()],
              "every_character": every_character(),
              "ids": [[ids, digest(b"ids\0" + struct.pack(f"<{len(ids)}i", *ids))]
                      for ids in ([], [0], [1, 2, 3], [258, 65536, -1, 2**31 - 1, -2**31], list(range(1000)))]}
    # One line an entry.
    lines = {key: "[\n" + ",\n".join(json.dumps(entry) for entry in value) + "\n]"
             if isinstance(value, list) else json.dumps(value) for key, value in golden.items()}
    FILE.write_text("{\n" + ",\n".join(f'"{key}": {value}' for key, value in lines.items()) + "\n}\n")


if __name__ == "__main__":
    main()
