"""Measures the model of echoes on held-out requests: what it says greedily, exactly what was marked or not.

    python evaluate_echo.py FOLDER --requests HELDOUT.jsonl [--json FILE]

Each text is read once, with the right answer, as evaluate_calls.py does it.
"""

import argparse
import json
import pathlib

import torch

import export
import tokenizer
from evaluate_calls import exact, interval, renderer


def requests_of(path):
    with open(path, encoding="utf-8") as lines:  # str.splitlines also cuts at the U+2028 of a text
        return [json.loads(line) for line in lines]


def messages_of(row):
    system = [{"role": "system", "content": row["system"]}] if row["system"] else []
    return system + [{"role": "tool" if row["from_tool"] else "user", "content": row["message"]}]


def ids_of(text):
    """As the tokenizer cuts it: tags are one token each."""
    special = {name: token for token, name in tokenizer.QWEN3_TOKENS}
    ids, at = [], 0
    while at < len(text):
        name = next((name for name in special if text.startswith(name, at)), None)
        ids += [special[name]] if name else tokenizer.encode(text[at])
        at += len(name or " ")
    return ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--requests", type=pathlib.Path, required=True)
    parser.add_argument("--json")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    model = export.load(args.folder, device=args.device)
    render = renderer(args.folder)
    rows = requests_of(args.requests)
    right = exact(model, [render(messages_of(row), add_generation_prompt=True, enable_thinking=row["thinks"]) for row in rows],
                  [ids_of(row["answer"]) + [tokenizer.QWEN3_TURN_END] for row in rows])
    report, counts = {}, {}
    for ok, row in zip(right, rows):
        for name in ("all", row["kind"], f"{row['kind']}, up to {row['longest']}"):
            total = counts.setdefault(name, [0, 0])
            total[0] += ok
            total[1] += 1
    for name, (exactly, count) in sorted(counts.items()):
        report[name] = {"count": count, "exact": exactly, "wilson_95": interval(exactly, count)}
        print(f"{name:26} {exactly:4} of {count:4} exact  {report[name]['wilson_95']}", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
