#!/usr/bin/env python3
"""Draft trees by an oracle of a few lines: tests/data/drafters/trees.json.

A tree holds the likeliest prefixes under the chances of a lattice, at most `nodes` of them, as DDTree says (arXiv
2604.12989); with `chain_first` the likeliest token of each depth comes first. Chances are drawn at random, so that no two
paths are equally likely. A case:

  children    by depth ("1", "2", ...) as a block drafter has them, or by path ("", "3", "3,5"): [[token, log chance]]
  by_path     which of the two
  nodes, depth, least, chain_first    the limits
  tree        [[token, parent's index or -1, depth, log chance of all up to it]], in the order in which they are taken
"""
import heapq
import json
import math
import pathlib
import random
import struct

OUT = pathlib.Path(__file__).resolve().parents[3] / "tests/data/drafters/trees.json"


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def some_children(draw, count, rest):
    weights = [draw.random() ** 3 + 1e-3 for _ in range(count)]
    total = sum(weights) * (1 + rest)
    tokens = draw.sample(range(1000), count)
    return sorted(([token, f32(math.log(weight / total))] for token, weight in zip(tokens, weights)),
                  key=lambda child: -child[1])


def tree(case):
    def children(path):
        key = ",".join(map(str, path)) if case["by_path"] else str(len(path) + 1)
        return case["children"].get(key, []) if len(path) < case["depth"] else []
    taken = {(): -1}
    out = []

    def take(path, score):
        taken[path] = len(out)
        out.append([path[-1], taken[path[:-1]], len(path), score])
    if case["chain_first"]:
        path, score = (), 0.0
        while children(path) and len(out) < case["nodes"]:
            token, logw = children(path)[0]
            path, score = (*path, token), score + logw
            take(path, score)
    heap = [(-logw, (token,)) for token, logw in children(())]
    heapq.heapify(heap)
    while heap and len(out) < case["nodes"]:
        score, path = heapq.heappop(heap)
        if -score < math.log(case["least"]) if case["least"] > 0 else False:
            break
        if path not in taken:
            take(path, -score)
        for token, logw in children(path):
            heapq.heappush(heap, (score - logw, (*path, token)))
    return out


def cases():
    for seed, (nodes, depth, top, chain, least) in enumerate([
            (15, 15, 8, True, 0), (22, 15, 8, True, 0), (22, 15, 8, False, 0), (32, 15, 8, True, 0),
            (64, 15, 8, False, 0), (64, 15, 8, True, 0.01), (8, 3, 4, True, 0), (5, 15, 2, False, 0.2)]):
        draw = random.Random(seed)
        yield {"by_path": False, "nodes": nodes, "depth": depth, "least": least, "chain_first": chain,
               "children": {str(at): some_children(draw, top, 0.1) for at in range(1, depth + 1)}}
    for seed in range(4):
        draw = random.Random(100 + seed)
        children, paths = {}, [()]
        for _ in range(3):
            below = []
            for path in paths:
                found = some_children(draw, 3, 0.3)
                children[",".join(map(str, path))] = found
                below += [(*path, token) for token, _ in found]
            paths = below
        yield {"by_path": True, "nodes": 6 + 5 * seed, "depth": 3, "least": 0, "chain_first": seed % 2 == 0,
               "children": children}


if __name__ == "__main__":
    made = list(cases())
    for case in made:
        case["tree"] = tree(case)
    OUT.write_text(json.dumps({"cases": made}, separators=(",", ":")).replace('{"by_path', '\n{"by_path') + "\n")
