#!/usr/bin/env python3
"""Writes tests/data/models/SHA256SUMS: which weights, configurations, tokenizers and goldens belong together.

The models are made by this repository, so they have no revision at a hub: their bytes are what is pinned, and
`versions` in each golden.json says which torch and transformers computed it. make_goldens.py calls this at its end.
"""
import hashlib
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
PINNED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
          "compose_golden.json")


def write():
    folder = ROOT / "tests/data/models"
    paths = [path for path in folder.rglob("*.*") if path.is_file()]
    for model in (ROOT / "models").glob("dendrite-*"):  # some have goldens here or beside them
        paths += [path for name in PINNED if (path := model / name).exists()]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(ROOT).as_posix()}\n"
             for path in sorted(paths)]
    (folder / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    write()
