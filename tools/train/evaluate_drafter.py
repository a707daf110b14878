"""Measures a block drafter on what its target writes greedily after held-out prompts.

    python evaluate_drafter.py FOLDER --target MODEL_FOLDER [--json FILE] [--tasks game24,...] [--count N]

Chains and trees (budgets 16 and 32, eight tokens a place) are walked along the text as an engine would, round by
round. No KV cache; all blocks of a text are one pass's.
"""

import argparse
import json
import pathlib
import time

import torch

import blocks
import drafter as block_drafter
import drafting
import export
import tokenizer
from decoding import Decoder
from evaluate import MODEL_FOLDER, header, load_task
from model import causal_attention

TOP_K = 8
BUDGETS = (16, 32)
ANCHORS = 16  # of a pass
PASS_ROWS = 64


def prompts_of(task, count):
    """(prompts, tokens that may follow, ids between <|bos|> and the prompt)."""
    if task == "calls":
        lines = (MODEL_FOLDER / "../dendrite-tools/heldout.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["request"] + "\n" for line in lines[:count]], 224, (tokenizer.CALL,)
    if task == "moves":
        return [header("E", *p) for p in load_task("game24", count)[:count]], 232, ()
    return [header("S", *p) for p in load_task(task, count)[:count]], 110, ()


# Of each target: Game of 24 and Countdown 4 and 5 solved (mode S), lists of moves (mode E); calls.
TASKS = {"dendrite-24": ("game24", "countdown4", "countdown5", "moves"), "dendrite-tools": ("calls",)}


@torch.no_grad()
def likeliest(target, drafter, tokens, begins, ends):
    """For each text, for each anchor from its `begins` to its end: (tokens, log-probs), both [places, TOP_K].

    tokens [texts, length], padded on the right; text i is tokens[i, begins[i]:ends[i]].
    """
    make_mask, attend = blocks.BLOCK_ATTENTION["dense"]()
    size = drafter.config.block_size
    places = [[] for _ in begins]
    for at in range(0, len(tokens), PASS_ROWS):
        part, begin, end = tokens[at:at + PASS_ROWS], begins[at:at + PASS_ROWS], ends[at:at + PASS_ROWS]
        features, _ = blocks.tapped(target, drafter.config.taps, part, causal_attention)
        for offset in range(0, max(e - b for b, e in zip(begin, end)), ANCHORS):
            anchors = torch.tensor(begin, device=part.device)[:, None] + offset
            anchors = anchors + torch.arange(ANCHORS, device=part.device)
            anchors = anchors.clamp(max=part.shape[1] - 1)
            mask = make_mask(part, anchors, size)
            logits = blocks.block_logits(drafter, target.embedding, features, part, anchors,
                                         lambda q, k, v: attend(q, k, v, mask))
            top = logits[:, :, 1:].log_softmax(dim=-1).topk(TOP_K, dim=-1)
            for i, pair in enumerate(zip(top.indices.cpu(), top.values.cpu())):
                count = max(0, min(ANCHORS, end[i] - begin[i] - offset))
                places[at + i] += zip(*(part[:count] for part in pair))
    return places


def as_lists(places):
    """As drafting.py takes them: of each place [(token, logprob)]."""
    return [list(zip(*place)) for place in zip(*(part.tolist() for part in places))]


def measure(target, drafter, task, count):
    decoder = Decoder(target)
    prompts, room, opening = prompts_of(task, count)
    tokens, begins, ends = decoder.complete_tokens(prompts, room, opening=opening)
    places = likeliest(target, drafter, tokens, begins, ends)
    depth = drafter.config.block_size - 1
    drafts = {"chain": drafting.chain}
    for budget in BUDGETS:
        drafts[f"tree of {budget}"] = lambda p, budget=budget: drafting.best_tree(p, budget)
    tallies = {name: drafting.Tally(depth) for name in drafts}
    for row, begin, end, of_text in zip(tokens.tolist(), begins, ends, places):
        for name, draft in drafts.items():
            tallies[name].walk(row[begin:end], lambda i: draft(as_lists(of_text[i])))
    return {"texts": len(prompts), "tokens a text": round(sum(e - b for b, e in zip(begins, ends)) / len(prompts), 1),
            **{name: tally.report() for name, tally in tallies.items()}}


def main():
    listed = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafter")
    parser.add_argument("--target", required=True)
    parser.add_argument("--json")
    parser.add_argument("--tasks", type=listed, help="default: the target's, by its folder's name")
    parser.add_argument("--count", type=int, default=200, help="prompts a task, at most")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"))
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype or ("bfloat16" if args.device == "cuda" else "float32"))
    target = export.load(args.target, dtype, args.device)
    drafter = block_drafter.load(args.drafter, dtype, args.device)
    report = {}
    for task in args.tasks or TASKS[pathlib.Path(args.target).resolve().name]:
        started = time.perf_counter()
        report[task] = measured = measure(target, drafter, task, args.count)
        print(f"{task}: {measured['texts']} texts of {measured['tokens a text']} tokens "
              f"({time.perf_counter() - started:.1f} s)")
        for name, values in measured.items():
            if isinstance(values, dict):
                print(f"  {name:10} {values['tokens a round']:6.2f} tokens a round, siblings among accepted "
                      f"{values['siblings among accepted']}, right by position "
                      f"{values['right by position, if those before were']}", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
