"""Measures a model on held-out puzzles with the reference decoder.

    python evaluate.py MODEL --generator ./generate [--json FILE] [--only greedy,tree,...] [--tasks game24,...]

MODEL is what export.load takes. The puzzles are the *_heldout.txt lists beside the shipped model; judge and proposals
are measured on held-out documents from the generator. A wrong line ends a rollout: every line is parsed and checked.
"""

import argparse
import json
import pathlib
import subprocess
import time

import torch

import export
import puzzle
from decoding import Decoder

MODEL_FOLDER = pathlib.Path(__file__).parent / "../../models/dendrite-24"
TASKS = ("game24", "countdown3", "countdown4", "countdown5")


def load_task(task, count):
    """[(numbers, target)] from the held-out lists beside the shipped model; at most `count` of Countdown."""
    path = MODEL_FOLDER / f"{task}_heldout.txt"
    return puzzle.read_games(path) if task == "game24" else puzzle.read_countdown(path)[:count]


def read_documents(generator, task, mode, count, seed=11):
    """Held-out documents as (text before what is learnt, what is learnt)."""
    command = [generator, "docs", "--task", task, "--mode", mode, "--split", "heldout", "--count", str(count),
               "--seed", str(seed)]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        learnt_from, _, text = line.split("\t")
        text = text.replace("\\n", "\n")
        yield text[:int(learnt_from)], text[int(learnt_from):]


def header(mode, numbers, target):
    return f"{mode} {target}: {' '.join(map(str, numbers))}\n"


def rate(successes, trials):
    return {"successes": successes, "trials": trials, "percent": [round(x, 1) for x in puzzle.wilson(successes, trials)]}


def first_illegal(numbers, text):
    """Index of the first wrong line among the n-1 lines of a rollout, or None."""
    lines = text.split("\n")[:len(numbers) - 1]
    _, legal = puzzle.follow(numbers, lines)
    return legal if legal < len(numbers) - 1 else None


def measure_greedy(decoder, puzzles):
    texts, lengths = decoder.complete([header("S", *p) for p in puzzles])
    solved = sum(puzzle.is_solution(*p, text) for p, text in zip(puzzles, texts))
    illegal = sum(first_illegal(p[0], text) is not None for p, text in zip(puzzles, texts))
    return {"greedy": rate(solved, len(puzzles)), "greedy rollouts with an illegal line": rate(illegal, len(puzzles)),
            "tokens per rollout": round(sum(lengths) / len(lengths), 1)}


def measure_samples(decoder, puzzles, n=32):
    texts, _ = decoder.complete([header("S", *p) for p in puzzles for _ in range(n)], temperature=1.0, seed=1)
    solved = [[puzzle.is_solution(*p, t) for t in texts[i * n:(i + 1) * n]] for i, p in enumerate(puzzles)]
    illegal = sum(first_illegal(p[0], t) is not None for i, p in enumerate(puzzles) for t in texts[i * n:(i + 1) * n])
    results = {f"best of {k}": rate(sum(any(s[:k]) for s in solved), len(puzzles)) for k in (1, 8, 32) if k <= n}
    return {**results, "sampled rollouts with an illegal line": rate(illegal, n * len(puzzles))}


def search_tree(decoder, puzzles, width, threshold):
    """Breadth-first search: children are the model's own proposals, their order the model's own judgement.

    A child is kept as it is, legal or not; only a completely legal path that ends in the target is a solution.
    """
    beams = [[header("P", *p)] for p in puzzles]
    solved, looked_at, judged, claimed = [False] * len(puzzles), 0, 0, 0
    for depth in range(max(len(p[0]) for p in puzzles) - 1):
        trunks = [(i, trunk) for i, beam in enumerate(beams) for trunk in beam]
        lines, count = decoder.propose([trunk for _, trunk in trunks], threshold)
        looked_at += count
        children = [[] for _ in puzzles]
        for (i, trunk), proposals in zip(trunks, lines):
            children[i] += [trunk + line for line, _ in proposals]
        if depth == len(puzzles[0][0]) - 2:
            for i, (numbers, target) in enumerate(puzzles):
                ends = [c for c in children[i] if c.endswith(f"| {target}\n")]
                claimed += bool(ends)
                solved[i] = any(puzzle.is_solution(numbers, target, c.split("\n", 1)[1]) for c in ends)
            break
        flat = [(i, child) for i, group in enumerate(children) for child in group]
        judged += len(flat)
        ranked = sorted(zip(decoder.judge([c for _, c in flat]), flat), key=lambda x: -x[0])
        beams = [[] for _ in puzzles]
        for _, (i, child) in ranked:
            if len(beams[i]) < width:
                beams[i].append(child)
    return {f"tree b={width}": rate(sum(solved), len(puzzles)), f"tree b={width} claimed": rate(claimed, len(puzzles)),
            f"tree b={width} tokens proposed per puzzle": round(looked_at / len(puzzles)),
            f"tree b={width} judged per puzzle": round(judged / len(puzzles), 1)}


def measure_judge(decoder, generator, task, count=3000):
    """Accuracy on balanced held-out states, by numbers left."""
    documents = list(read_documents(generator, task, "J", count))
    values = decoder.judge([trunk[:-1] for trunk, _ in documents])
    tally = {}
    for (trunk, label), value in zip(documents, values):
        last = trunk.split("\n")[-2]
        left = len(last.split("|")[1].split()) if "|" in last else len(puzzle.parse_header(last)[2])
        right, total = tally.get(left, (0, 0))
        tally[left] = right + ((value > 0.5) == (label == "sure\n")), total + 1
    return {f"judge, {left} left": rate(*tally[left]) for left in sorted(tally, reverse=True)}


def measure_proposals(decoder, generator, task, threshold, count=500):
    """How much of the legal moves is proposed, and how much of what is proposed is illegal."""
    trunks = [trunk for trunk, _ in read_documents(generator, task, "P", count)]
    proposals, _ = decoder.propose(trunks, threshold)
    found = legal_count = wrong = total = 0
    illegal_mass = 0.0
    for trunk, lines in zip(trunks, proposals):
        head, *past = trunk.strip().split("\n")
        numbers, _ = puzzle.follow(puzzle.parse_header(head)[2], past)
        legal = set(puzzle.legal_lines(numbers))
        proposed = {line.strip(): p for line, p in lines}
        found += len(legal & set(proposed))
        legal_count += len(legal)
        wrong += len(set(proposed) - legal)
        total += len(proposed)
        illegal_mass += sum(p for line, p in proposed.items() if line not in legal)
    return {"legal moves proposed": rate(found, legal_count), "proposals illegal": rate(wrong, total),
            "illegal probability percent": round(100 * illegal_mass / len(trunks), 3)}


def evaluate(model, args):
    decoder = Decoder(model)
    report = {}
    for task in args.tasks:
        puzzles = load_task(task, args.count)
        started = time.perf_counter()
        measured = report[task] = {}
        if "greedy" in args.only:
            measured |= measure_greedy(decoder, puzzles)
        if "samples" in args.only:
            measured |= measure_samples(decoder, puzzles)
        if "tree" in args.only:
            for width in args.widths:
                measured |= search_tree(decoder, puzzles, width, args.threshold)
        if "judge" in args.only:
            measured |= measure_judge(decoder, args.generator, task)
        if "propose" in args.only:
            measured |= measure_proposals(decoder, args.generator, task, args.threshold)
        print(f"{task} ({time.perf_counter() - started:.1f} s)", flush=True)
        for name, value in measured.items():
            if isinstance(value, dict):
                value = "{:5.1f} %  [{:.1f}, {:.1f}]  {}/{}".format(*value["percent"], value["successes"], value["trials"])
            print(f"  {name:45} {value}", flush=True)
    return report


def main():
    listed = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--generator", default="./generate")
    parser.add_argument("--json")
    parser.add_argument("--tasks", type=listed, default=list(TASKS))
    parser.add_argument("--only", type=listed, default=["greedy", "samples", "tree", "judge", "propose"])
    parser.add_argument("--widths", type=lambda text: [int(x) for x in text.split(",")], default=[1, 3, 5])
    parser.add_argument("--threshold", type=float, default=0.003)
    parser.add_argument("--count", type=int, default=300, help="Countdown puzzles a task")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    args = parser.parse_args()
    report = evaluate(export.load(args.model, getattr(torch, args.dtype), args.device), args)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
