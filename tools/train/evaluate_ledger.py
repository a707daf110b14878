"""Measures the model of ledgers on held-out ones: what it answers greedily, exactly or not, by kind and by distance.

    python evaluate_ledger.py FOLDER --generator ./generate_ledger [--bytes 500,2000,8000] [--count 40] [--json FILE]

Each ledger is read once, with the right answers: greedy decoding gives an answer exactly if, at each of its tokens, the
likeliest is the right one. A fact is as far back as the line that notes it; "ahead" is the share of the answers' tokens
that the MTP head says one token earlier.
"""

import argparse
import json
import pathlib
import subprocess

import torch

import export
import tokenizer
from evaluate_calls import interval


def questions_of(text):
    """(kind, bytes since a fact was noted, first byte, end) of each answer; line breaks belong to answers."""
    noted, at = {}, 0
    for line in text.splitlines(keepends=True):
        asked, mark, _ = line.partition("?")
        if mark:
            kind = "all counts" if not asked else "fact" if asked in noted else "count"
            yield kind, at - noted[asked] if kind == "fact" else 0, at + len(asked) + 1, at + len(line)
        elif "=" in line:
            noted[line.partition("=")[0]] = at
        at += len(line)


@torch.no_grad()
def measure(model, texts):
    """{what: [right, of]}."""
    counts = {}

    def add(name, right):
        total = counts.setdefault(name, [0, 0])
        total[0] += right
        total[1] += 1

    for text in texts:
        tokens = torch.tensor([[tokenizer.BOS, *tokenizer.encode(text)]], device=model.embedding.device)
        hidden = model(tokens)
        # [i]: of the byte i, from all before it; and from all but the one before it.
        said = (model.logits(hidden).argmax(-1)[0, :-1] == tokens[0, 1:]).tolist()
        ahead = (model.logits(model.ahead(tokens, hidden)).argmax(-1)[0, :-1] == tokens[0, 1:]).tolist()
        for kind, distance, begin, end in questions_of(text):
            right = all(said[begin:end])
            add(kind, right)
            if kind == "fact":
                add(f"fact, {next(most for most in (100, 400, 1600, 10**9) if distance < most)} bytes back at most", right)
            for at in range(begin + 1, end):
                add("ahead", ahead[at])
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--generator", required=True)
    parser.add_argument("--bytes", default="500,2000,8000", help="lengths of ledgers; rows of 512 were learnt")
    parser.add_argument("--count", type=int, default=40, help="ledgers of each length")
    parser.add_argument("--json")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    model = export.load(args.folder, device=args.device)
    report = {}
    for size in args.bytes.split(","):
        made = subprocess.run([args.generator, "heldout", "--count", str(args.count), "--bytes", size],
                              check=True, capture_output=True, text=True).stdout
        for name, (right, of) in sorted(measure(model, [json.loads(line) for line in made.splitlines()]).items()):
            report.setdefault(size, {})[name] = {"count": of, "right": right, "wilson_95": interval(right, of)}
            print(f"{size:>6} bytes  {name:28} {right:6} of {of:6}  {report[size][name]['wilson_95']}", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
