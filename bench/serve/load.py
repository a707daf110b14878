#!/usr/bin/env python3
"""Servers of OpenAI's API under load: streams at once, with and without a prefix that all have, several servers in turns.

  bench/serve/load.py --server 'dendrite=build/bin/dendrite serve --port 0' --json bench/results/serve.jsonl
  bench/serve/load.py --server dendrite=http://127.0.0.1:8000 --server 'vllm=vllm serve FOLDER --port {port}' \\
      --streams 1,8,32,128 --shared 0,4096 --ids 1000,127000 --model random-8b --device cuda

The first --server is whose rows these are, the others are its peers: each trial asks all of them, one after the other,
and ratios are of these pairs (above 1: the first is better). One that is a command is started, and ended behind the run.

A trial: `--streams` connections that are open ask at once, each with a prompt of the shared tokens and `--own` of its own,
for `--length` tokens, without a seed (some servers draw for seeded requests one by one). Shared tokens are new ones each
trial, and computed before it by a request that does not count. Rows: time to the first token and gaps between chunks, of
which p50 is the median of a trial's streams and p99 is of all streams of all trials; tokens a second from the first
request to the last token; answers that were none. Prompts are token ids, so that servers need no tokenizer; --api chat
sends texts of as many words.

What the driver itself takes is in each row of throughput, `driver_cpu` (processor seconds by seconds); beyond 0.5 it says
so, since times are the driver's then. Only Python's standard library.
"""
from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import pathlib
import random
import shlex
import statistics
import subprocess
import sys
from typing import Any

import servers
import streams

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/peers/vllm"))
import run as provenance  # noqa: E402

MOST_CPU = 0.5


@dataclasses.dataclass(frozen=True)
class Work:
    """What one trial asks for."""
    streams: int
    shared: int
    own: int
    length: int

    def params(self) -> dict[str, int]:
        return {"streams": self.streams, "shared": self.shared, "own": self.own, "length": self.length}


@dataclasses.dataclass
class Trial:
    """What came of it at one server."""
    first_ms: list[float]
    gaps_ms: list[float]
    tokens_s: float
    chunks_a_token: float
    errors: list[str]
    driver_cpu: float

    @staticmethod
    def of(answers: list[streams.Answer], length: int, busy_s: float) -> Trial:
        errors = []
        for answer in answers:
            if not answer.fault and answer.tokens != length:
                answer.fault = f"{answer.tokens} tokens; expected {length}"
            if answer.fault:
                errors.append(answer.fault)
        good = [answer for answer in answers if not answer.fault]
        span = max((answer.end_s for answer in answers), default=0.0) or 1e-9
        tokens = sum(answer.tokens for answer in good)
        return Trial([answer.first_s * 1e3 for answer in good if answer.first_s is not None],
                     [gap * 1e3 for answer in good for gap in answer.gaps_s], tokens / span,
                     sum(answer.chunks for answer in good) / max(1, tokens), errors, busy_s / span)


class Prompts:
    """Bodies of requests; the same seed gives the same."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        self.api, self.extra = options.api, options.extra
        self.low, self.high = options.ids
        self.random = random.Random(seed)

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(self.low, self.high) for _ in range(count)]

    def body(self, model: str, shared: list[int], own: list[int], length: int) -> dict[str, Any]:
        out: dict[str, Any] = {"model": model, "max_tokens": length, "ignore_eos": True, "temperature": 0.7, "stream": True,
                               "stream_options": {"include_usage": True}, "return_token_ids": True}
        if self.api == "completions":
            out["prompt"] = shared + own
        else:
            texts = [" ".join(f"w{token}" for token in tokens) for tokens in (shared, own)]
            out["messages"] = [{"role": role, "content": text} for role, text in zip(("system", "user"), texts) if text]
        return out | self.extra

    @property
    def path(self) -> str:
        return "/v1/completions" if self.api == "completions" else "/v1/chat/completions"


def model_of(server: servers.Server) -> str:
    answer = asyncio.run(streams.ask(server.address, "GET", "/v1/models", key=server.key))
    return str(answer.json()["data"][0]["id"])


def trial(server: servers.Server, model: str, work: Work, prompts: Prompts, limit_s: float) -> Trial:
    shared = prompts.tokens(work.shared)
    owns = [prompts.tokens(work.own) for _ in range(work.streams)]
    before = prompts.body(model, shared, prompts.tokens(work.own), 1)
    requests = [streams.request_bytes(server.address, "POST", prompts.path,
                                      prompts.body(model, shared, own, work.length), server.key) for own in owns]
    if shared:
        warm = asyncio.run(streams.ask(server.address, "POST", prompts.path, before, server.key, limit_s))
        if warm.fault:
            raise SystemExit(f"{server.name}: the shared tokens: {warm.fault}")
    answers, busy_s = asyncio.run(streams.all_at_once(server.address, requests, limit_s))
    return Trial.of(answers, work.length, busy_s)


def percentile(values: list[float], share: float) -> float:
    """By the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def rows_of(work: Work, trials: list[Trial]) -> list[dict[str, Any]]:
    def row(name: str, unit: str, samples: list[float], **more: Any) -> dict[str, Any]:
        out = provenance.row_json("serve", name, work.params(), unit, samples)
        del out["bench"]
        return out | {"median": statistics.median(samples) if samples else None} | more

    def times(name: str, all_of: list[list[float]]) -> dict[str, Any]:
        pooled = [value for values in all_of for value in values]
        return row(name, "ms", [statistics.median(values) for values in all_of if values],
                   p99=percentile(pooled, 0.99), max=max(pooled, default=None))

    return [times("first token", [each.first_ms for each in trials]), times("gap", [each.gaps_ms for each in trials]),
            row("throughput", "tok/s", [each.tokens_s for each in trials],
                chunks_a_token=statistics.fmean(each.chunks_a_token for each in trials),
                driver_cpu=max(each.driver_cpu for each in trials)),
            row("errors", "answers", [], count=sum(len(each.errors) for each in trials),
                of=work.streams * len(trials), first=next((each.errors[0] for each in trials if each.errors), None))]


def ratios(work: Work, peer: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the trials in pairs; above 1 the first server is better."""
    out = []
    for mine, other in zip(ours, theirs):
        if not mine["samples"] or len(mine["samples"]) != len(other["samples"]):
            continue
        pairs = zip(mine["samples"], other["samples"])
        is_rate = mine["unit"] == "tok/s"
        values = [a / b if is_rate else b / a for a, b in pairs if a > 0 and b > 0]
        if not values:
            continue
        out.append({"name": f"{mine['name']}, better than {peer}", "params": work.params(), "unit": "x", "trials": len(values),
                    "median": statistics.median(values), "samples": [float(f"{value:.6g}") for value in values],
                    "ours_median": mine["median"], "peer_median": other["median"]})
    return out


def show(rows: list[dict[str, Any]], name: str) -> None:
    by_name = {row["name"]: row for row in rows}
    first, gap, rate, errors = (by_name[each] for each in ("first token", "gap", "throughput", "errors"))
    params = rate["params"]

    def number(value: Any) -> str:
        return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

    cells = [name, params["streams"], params["shared"], number(first["median"]), number(first["p99"]), number(gap["median"]),
             number(gap["p99"]), number(rate["median"]), errors["count"], f"{rate['driver_cpu']:.2f}"]
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)
    if errors["count"]:
        print(f"{name}: {errors['count']} of {errors['of']} answers were none; the first: {errors['first']}", file=sys.stderr)
    if rate["driver_cpu"] > MOST_CPU:
        print(f"{name}: the driver took {rate['driver_cpu']:.2f} of a processor; its times are partly its own", file=sys.stderr)


def measure(options: argparse.Namespace, running: list[servers.Server]) -> dict[str, list[dict[str, Any]]]:
    """Rows by the server's name, and ratios as the first one's."""
    models = {server.name: model_of(server) for server in running}
    found: dict[str, list[dict[str, Any]]] = {server.name: [] for server in running}
    print("| server | streams | shared | first token p50, ms | p99 | gap p50, ms | p99 | tok/s | errors | driver cpu |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for shared in options.shared:
        for count in options.streams:
            work = Work(count, shared, options.own, options.length)
            trials: dict[str, list[Trial]] = {server.name: [] for server in running}
            for number in range(-options.warm, options.trials):
                for server in running:  # the same prompts for each
                    prompts = Prompts(options, hash((options.seed, shared, count, number)))
                    done = trial(server, models[server.name], work, prompts, options.limit_s)
                    if number >= 0:
                        trials[server.name].append(done)
            rows = {name: rows_of(work, each) for name, each in trials.items()}
            for name, each in rows.items():
                found[name] += each
                show(each, name)
            first, *others = rows
            for other in others:
                compared = ratios(work, other, rows[first], rows[other])
                found[first] += compared
                print("  " + "; ".join(f"{row['name']}: {row['median']:.3f}x" for row in compared), flush=True)
    return found


def commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "--short=12", "HEAD")
    return (head + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")) if head else "unknown"


def run_json(options: argparse.Namespace, found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    first, *others = found
    command = "load.py " + shlex.join(sys.argv[1:]).replace(str(ROOT) + "/", "")
    out = provenance.run_json("", first, options.version or commit(), command, found[first])
    out |= {"bench": "serve", "model": options.model, "device": {"kind": options.device, "name": out["machine"]["gpu"]}}
    out["conditions"] = [{"load": options.load_before}, {"load": os.getloadavg()[0]}]
    out["peers"] = [row | {"peer": name} for name in others for row in found[name]]
    return out


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", action="append", required=True, help="NAME=URL or NAME=COMMAND; several: in turns")
    parser.add_argument("--streams", type=numbers, default=[1, 8, 32, 128, 256], help="at once")
    parser.add_argument("--shared", type=numbers, default=[0, 4096], help="tokens that all prompts of a trial begin with")
    parser.add_argument("--own", type=int, default=128, help="tokens of each prompt behind them")
    parser.add_argument("--length", type=int, default=128, help="tokens that are generated")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--warm", type=int, default=1, help="trials before, which do not count")
    parser.add_argument("--ids", type=numbers, default=[3, 250], help="LOW,HIGH: prompts are of the tokens between")
    parser.add_argument("--api", choices=["completions", "chat"], default="completions")
    parser.add_argument("--extra", type=json.loads, default={}, help="a JSON object that all bodies have, too")
    parser.add_argument("--key", default="", help="of all servers, as a bearer's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=300, help="of a trial and of a start")
    parser.add_argument("--model", default="dendrite-24", help="what the file calls it")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--version", default="", help="of the first server's sources; default: the commit here")
    parser.add_argument("--json", type=pathlib.Path, help="adds a line to this file (bench/results/README.md)")
    return parser


def main() -> int:
    options = arguments().parse_args()
    options.load_before = os.getloadavg()[0]
    running = [servers.Server(told, options.key) for told in options.server]
    try:
        for server in running:
            server.start(options.limit_s)
            print(f"{server.name}: {server.url}, there after {server.startup_s:.1f} s", flush=True)
        found = measure(options, running)
    finally:
        for server in running:
            server.stop()
    if options.json:
        with open(options.json, "a", encoding="utf-8") as file:
            file.write(json.dumps(run_json(options, found)) + "\n")
    return 1 if any(row.get("count") for rows in found.values() for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
