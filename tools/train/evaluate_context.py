"""Measures a model on held-out questions, and writes logits of compositions for an engine to be compared with.

    python evaluate_context.py FOLDER --questions questions.jsonl [--golden compose_golden.json]

Prints the share of right answers (greedy, to the newline) per class: `full` with ordinary causal attention, `alone` with
pieces that see only themselves and what is common, at their true positions: what a composition without repair sees, but
that what is common is farther away than where a piece was computed.
"""

import argparse
import json
import pathlib

import torch

import export
import tokenizer
from compose import compose_logits
from model import causal_attention
from rows import PIECE_SHIFT, SEES_ALL
from train import DOCUMENT_ATTENTION, unpack

LEARNT = -(1 << 15)
BATCH_TOKENS, BATCH_PAIRS = 1 << 16, 1 << 26  # of a forward pass; without and with a mask


def read_questions(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def common_of(record):
    return record["system"] + record.get("common", "")


def pieces_of(record):
    return record["documents"] if "documents" in record else record["turns"]


def packed(record):
    """A row as the generator's: ids, pieces and what is to be answered."""
    ids = [tokenizer.BOS] + tokenizer.encode(common_of(record))
    for number, piece in enumerate(pieces_of(record), 1):
        ids += [i | number << PIECE_SHIFT for i in tokenizer.encode(piece)]
    ids += [i | SEES_ALL << PIECE_SHIFT for i in tokenizer.encode(record["question"])]
    return ids + [i | SEES_ALL << PIECE_SHIFT | LEARNT for i in tokenizer.encode(record["answer"] + "\n")]


@torch.no_grad()
def right_answers(model, records, alone):
    """Whether each is answered by its answer and a newline, greedily."""
    make_mask, attend = DOCUMENT_ATTENTION["dense"](pieces=True)
    rows, device = [packed(record) for record in records], model.embedding.device
    order, right = sorted(range(len(rows)), key=lambda i: len(rows[i])), [False] * len(rows)
    while order:
        width = len(rows[order[-1]])
        count = max(1, BATCH_PAIRS // width ** 2 if alone else BATCH_TOKENS // width)
        batch, order = order[-count:], order[:-count]
        part = torch.tensor([rows[i] + [tokenizer.PAD] * (width - len(rows[i])) for i in batch], device=device)
        tokens, targets, weights, _ = unpack(part, None)
        mask = make_mask(part) if alone else None
        hidden = model(tokens, (lambda q, k, v: attend(q, k, v, mask)) if alone else causal_attention)
        asked = weights > 0
        wrong = torch.zeros_like(asked)
        wrong[asked] = model.logits(hidden[asked]).argmax(dim=-1) != targets[asked]
        for i, bad in zip(batch, wrong.any(dim=1).tolist()):
            right[i] = not bad
    return right


def golden_cases(model, records):
    """Compositions of short contexts, each with another left context and repair."""
    cases = []
    for name, left, first, last in (("Q1", None, 0, 0), ("Q3", None, 16, 2), ("Q6", [tokenizer.BOS] * 4, 4, 0)):
        record = min((r for r in records if r["class"] == name and len(r["documents"]) > 2),
                     key=lambda r: len("".join(r["documents"])))
        system = [tokenizer.BOS] + tokenizer.encode(record["system"])
        documents = [tokenizer.encode(d) for d in record["documents"]]
        question = tokenizer.encode(record["question"])
        logits = compose_logits(model, system, documents, question, first, last, left)
        plain = model.logits(model(torch.tensor([system + sum(documents, []) + question])))[0]
        cases.append({"left": system if left is None else left, "system": system, "documents": documents,
                      "question": question, "first": first, "last": last,
                      # of the last rows of the question, and of the last one in a full computation
                      "logits": [[round(x, 5) for x in row] for row in logits[-3:].tolist()],
                      "full": [round(x, 5) for x in plain[-1].tolist()]})
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--questions", required=True)
    parser.add_argument("--count", type=int, default=200, help="questions a class")
    parser.add_argument("--golden", help="where to write compositions")
    parser.add_argument("--json", help="where to write the shares")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    model, records = export.load(args.folder, device=args.device), read_questions(args.questions)
    shares = {}
    for name in dict.fromkeys(record["class"] for record in records):
        asked = [record for record in records if record["class"] == name][:args.count]
        full, alone = (sum(right_answers(model, asked, a)) / len(asked) for a in (False, True))
        shares[name] = {"questions": len(asked), "full": round(full, 4), "alone": round(alone, 4)}
        print(f"{name:7s} {len(asked):4d} questions  full {100 * full:5.1f} %  alone {100 * alone:5.1f} %", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(shares, indent=1) + "\n")
    if args.golden:
        with torch.no_grad():
            cases = golden_cases(model.to("cpu"), records)
        pathlib.Path(args.golden).write_text(json.dumps({"cases": cases}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
