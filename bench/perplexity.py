#!/usr/bin/env python3
"""What formats cost the shipped model, in perplexity on texts that it has not seen and in equal likeliest tokens.

  bench/perplexity.py [PROGRAM] [--check]      PROGRAM: default build/bin/dendrite

Prints the table of docs/weights.md: every second text of models/dendrite-24/heldout.jsonl calibrates, the others are
measured with. --check fails unless the model's own perplexity on all of them is within 0.5 % of what transformers has
in f32 (tests/data/perplexity.json), and fp8's within 0.5 % of it. Standard library only.
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/dendrite-24"
TEXT = MODEL / "heldout.jsonl"
MOST = 0.005
FORMATS = (["fp8"], ["int8"], ["int4", "--group", "128"], ["int4", "--group", "32"])


def ask(program: str, *args: object) -> dict[str, Any]:
    done = subprocess.run([program, *map(str, args), "--json"], check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(program: str, form: list[str], folder: pathlib.Path, calibrated: bool) -> float:
    """Prints a format's row; how far its perplexity is off."""
    out = folder / "-".join([*form, str(calibrated)])
    more = ["--calibration", folder / "calibration.jsonl"] if calibrated else []
    got = ask(program, "quantize", "--model", MODEL, "--format", *form, "--out", out,
              "--text", folder / "text.jsonl", *more)
    name = form[0] + (f" of {form[2]}" if len(form) > 1 else "") + (", calibrated" if calibrated else "")
    costs = got["perplexity"]
    off: float = costs["ratio"] - 1
    print(f"| {name} | {got['bits_a_weight']:.2f} | {costs['after']:.4f} | {100 * off:+.2f} % "
          f"| {100 * got['top1_agreement']:.2f} % |", flush=True)
    return off


def check(program: str) -> list[str]:
    """What is wrong with the perplexity of the model as it is."""
    golden = json.loads((ROOT / "tests/data/perplexity.json").read_text())["all"]
    expected = math.exp(golden["nats"] / golden["tokens"])
    wrong = []
    for dtype in ("f32", "bf16"):
        got = ask(program, "perplexity", "--model", MODEL, "--text", TEXT, "--dtype", dtype)
        print(f"{dtype}: {got['perplexity']:.5f}; by transformers {expected:.5f}; {got['tokens']} tokens")
        if got["tokens"] != golden["tokens"] or abs(got["perplexity"] / expected - 1) > MOST:
            wrong.append(f"{dtype}: {got['perplexity']} of {got['tokens']} tokens; "
                         f"expected {expected} of {golden['tokens']}, within {MOST}")
    return wrong


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--check"]
    program = words[0] if words else str(ROOT / "build/bin/dendrite")
    wrong = check(program) if "--check" in sys.argv else []
    lines = TEXT.read_text().splitlines(keepends=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "calibration.jsonl").write_text("".join(lines[1::2]))
        (folder / "text.jsonl").write_text("".join(lines[::2]))
        before = ask(program, "perplexity", "--model", MODEL, "--text", folder / "text.jsonl")
        print("| weights | bits in the file | perplexity | change | same likeliest token |\n| --- | --- | --- | --- | --- |")
        print(f"| bf16 | 16 | {before['perplexity']:.4f} | | |")
        for form in FORMATS:
            for calibrated in (False, True):
                off = row(program, form, folder, calibrated)
                if form == ["fp8"] and abs(off) > MOST:
                    wrong.append(f"fp8: perplexity is off by {100 * off:.2f} %; expected {100 * MOST} % at most")
    if "--check" in sys.argv and wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
