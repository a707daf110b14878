#!/usr/bin/env python3
"""What a server of ours has to hold under load, each with its figure, beside the same work in a process without a server.

  bench/serve/limits.py [--build build] [--model FOLDER] [--threads N] [--json FILE] [PART...]      (default: all)

  equal        256 streams with seeds of their own: texts, tokens and log-probs of each are those of the same request alone
  throughput   256 streams: tokens a second, at least 0.9 of `dendrite-bench agents --modes one-call`
  one          one stream: its first token at most 3 ms later than in process, its gaps at most 0.2 ms longer, p50 and p99
  long         8 streams, then a prompt of 16,384 tokens: p99 of their gaps at most twice the time that steps aim at
  tenants      a key with 200 requests beside one with 1, whose first token takes at most 3 times as long as alone
  idle         10,000 connections that say nothing, and 64 streams: 200 MB more at most, p99 of /health under 20 ms
  gone         1,000 clients that go: in line, in their prompts, while they read, and without reading: all pages come back

A server is started for each part. Times are worth what the machine's load lets them be: each line tells it.
"""
from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable

import load
import servers
import streams

STEP_TARGET_MS = 100  # EngineOptions::step_target_ms on a CPU
OWN, LENGTH = 128, 128


@dataclasses.dataclass
class Check:
    options: argparse.Namespace
    name: str
    found: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def tell(self, what: str, value: float, unit: str, most: float | None = None, least: float | None = None) -> None:
        holds = (most is None or value <= most) and (least is None or value >= least)
        bound = f"at most {most:.4g}" if most is not None else f"at least {least:.4g}" if least is not None else ""
        verdict = "" if not bound else "holds" if holds else "MISSED"
        print(f"| {self.name} | {what} | {value:.4g} {unit} | {bound} | {verdict} | {os.getloadavg()[0]:.1f} |", flush=True)
        self.found.append({"part": self.name, "what": what, "value": value, "unit": unit, "most": most, "least": least,
                           "holds": holds, "load": os.getloadavg()[0]})

    def server(self, *more: str, keys: list[str] | None = None) -> servers.Server:
        o = self.options
        words = [f"exec {o.build}/bin/dendrite serve --port 0 --model {o.model} --threads {o.threads}", "--beyond-positions", *more]
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:  # which is read before it listens
            if keys:
                file.write("\n".join(keys))
                file.flush()
                words.append(f"--api-key-file {file.name}")
            server = servers.Server("dendrite=" + " ".join(words), keys[0] if keys else "")
            server.start(60)
        return server

    def agents(self, callers: int) -> dict[str, dict[str, Any]]:
        """The same work in process: rows by their names."""
        mode = "joined" if callers == 1 else "one-call"
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            words = {"model": self.options.model, "work": "callers", "callers": callers, "caller-prompt": OWN,
                     "caller-length": LENGTH, "modes": mode, "threads": self.options.threads,
                     "trials": 16 if callers == 1 else 1, "json": file.name}
            subprocess.run([f"{self.options.build}/bin/dendrite-bench", "agents",
                            *(str(word) for name, value in words.items() for word in (f"--{name}", value))],
                           check=True, capture_output=True)
            rows = json.loads(pathlib.Path(file.name).read_text(encoding="utf-8"))["rows"]
        return {row["name"].removeprefix(mode).removeprefix(", "): row for row in rows}


def body(own: list[int], length: int = LENGTH, seed: int = 1, **more: Any) -> dict[str, Any]:
    out = {"prompt": own, "max_tokens": length, "ignore_eos": True, "temperature": 0.7, "seed": seed,
           "return_token_ids": True} | more
    return out | {"stream_options": {"include_usage": True}} if out.get("stream") else out


def prompts(count: int, length: int, seed: int = 1) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(3, 250) for _ in range(length)] for _ in range(count)]


def posts(server: servers.Server, bodies: list[dict[str, Any]], key: str = "") -> list[bytes]:
    return [streams.request_bytes(server.address, "POST", "/v1/completions", each, key or server.key) for each in bodies]


def equal(check: Check) -> None:
    server = check.server()
    try:
        asked = [body(own, seed=i, logprobs=1) for i, own in enumerate(prompts(256, OWN))]
        together, _ = asyncio.run(streams.all_at_once(server.address, posts(server, asked), 300))
        streamed, _ = asyncio.run(streams.all_at_once(
            server.address, posts(server, [each | {"stream": True, "logprobs": None} for each in asked]), 300))
        different = 0
        for i, each in enumerate(asked):
            alone, _ = asyncio.run(streams.all_at_once(server.address, posts(server, [each]), 60))
            mine, other = (answer.json()["choices"][0] for answer in (together[i], alone[0]))
            different += not (mine == other and len(mine["token_ids"]) == LENGTH and not streamed[i].fault and
                              mine["text"] == "".join(streamed[i].texts))
        check.tell("of 256 streams, that are not as alone", different, "streams", most=0)
    finally:
        server.stop()


def throughput(check: Check) -> None:
    shares, rates = [], []
    server = check.server()
    try:
        for number in range(-1, check.options.trials):
            asked = [body(own, seed=i, stream=True) for i, own in enumerate(prompts(256, OWN, seed=number + 10))]
            answers, busy_s = asyncio.run(streams.all_at_once(server.address, posts(server, asked), 300))
            found = load.Trial.of(answers, LENGTH, busy_s)
            if found.errors:
                raise SystemExit(f"throughput: {found.errors[0]}")
            if number < 0:
                continue
            inside = 256 * LENGTH / check.agents(256)[""]["median"]
            rates.append(found.tokens_s)
            shares.append(found.tokens_s / inside)
        check.tell("256 streams", statistics.median(rates), "tok/s")
        check.tell("by the same in process", statistics.median(shares), "x", least=0.9)
    finally:
        server.stop()


def one(check: Check) -> None:
    """In turns with runs in process; of each side the best run of a share, which others on the machine disturbed least."""
    server = check.server()
    try:
        sides: dict[str, dict[str, list[float]]] = {}
        for number in range(check.options.trials):
            first, gaps = [], []
            for i, own in enumerate(prompts(17, OWN, seed=number + 20)):
                answers, _ = asyncio.run(streams.all_at_once(server.address, posts(server, [body(own, seed=i, stream=True)]), 60))
                if i > 0:
                    first.append((answers[0].first_s or 0) * 1e3)
                    gaps += [gap * 1e3 for gap in answers[0].gaps_s]
            rows = check.agents(1)
            inside = {"first token p50": rows["first token"]["median"], "first token p99": rows["first token"]["p99"],
                      "gap p50": rows["gap"]["median"], "gap p99": rows["gap"]["p99"]}
            outside = {"first token p50": statistics.median(first), "first token p99": load.percentile(first, 0.99),
                       "gap p50": statistics.median(gaps), "gap p99": load.percentile(gaps, 0.99)}
            for side, values in (("inside", inside), ("outside", outside)):
                for name, value in values.items():
                    sides.setdefault(side, {}).setdefault(name, []).append(value)
        for name, inside_ms in sides["inside"].items():
            check.tell(f"{name}, in process {min(inside_ms):.4g}; later", min(sides["outside"][name]) - min(inside_ms), "ms",
                       most=3 if name.startswith("first") else 0.2)
    finally:
        server.stop()


def long(check: Check) -> None:
    server = check.server("--kv-tokens 65536")

    async def run() -> tuple[list[streams.Answer], streams.Answer]:
        decoding = [await streams.connect(server.address) for _ in range(8)]
        asked = [body(own, 1500, seed=i, stream=True) for i, own in enumerate(prompts(8, 64))]
        for stream, request in zip(decoding, posts(server, asked)):
            stream.ask(request)
        while min(len(stream.pieces) for stream in decoding) < 20:
            await asyncio.sleep(0.01)
        for stream in decoding:
            stream.pieces = [(0.0, b"HTTP/1.1 200 OK\r\n\r\n"), *stream.pieces[-1:]]  # (gaps from here on)
        late = await streams.connect(server.address)
        late.ask(posts(server, [body(prompts(1, 16384, seed=3)[0], 1, stream=True)])[0])
        await late.ended
        answers = []
        for stream in decoding:
            stream.drop()
            stream.pieces = [(when, data) for when, data in stream.pieces if when == 0 or when <= late.pieces[0][0]]
            answers.append(streams.Answer(gaps_s=[b - a for (a, _), (b, _) in zip(stream.pieces[1:], stream.pieces[2:])]))
        return answers, streams.read(late)

    try:
        answers, late = asyncio.run(run())
        gaps = [gap * 1e3 for answer in answers for gap in answer.gaps_s]
        check.tell("first token of 16,384", (late.first_s or 0) * 1e3, "ms")
        check.tell("gap p50 of 8 others meanwhile", statistics.median(gaps), "ms")
        check.tell("gap p99", load.percentile(gaps, 0.99), "ms", most=2 * STEP_TARGET_MS)
        check.tell("longest gap", max(gaps), "ms")
    finally:
        server.stop()


def tenants(check: Check) -> None:
    server = check.server("--kv-tokens 262144", keys=["many", "one"])

    async def first(own: list[int]) -> float:
        stream = await streams.connect(server.address)
        stream.ask(posts(server, [body(own, 4, stream=True)], "one")[0])
        await stream.ended
        return (streams.read(stream).first_s or 0) * 1e3

    async def run(length: int) -> tuple[float, float]:
        owns = prompts(6, length, seed=length)
        alone = statistics.median([await first(own) for own in owns[:3]])
        others = [await streams.connect(server.address) for _ in range(200)]
        asked = [body(own, 600, seed=i, stream=True) for i, own in enumerate(prompts(200, 64, seed=length + 1))]
        for stream, request in zip(others, posts(server, asked, "many")):
            stream.ask(request)
        while sum(len(stream.pieces) > 3 for stream in others) < 200:
            await asyncio.sleep(0.02)
        beside = statistics.median([await first(own) for own in owns[3:]])
        for stream in others:
            stream.drop()
        await settled(server)
        return alone, beside

    try:
        for length in (128, 1024, 4096):
            alone, beside = asyncio.run(run(length))
            check.tell(f"first token of {length}, alone {alone:.4g} ms; beside 200", beside / alone, "x", most=3)
    finally:
        server.stop()


def idle(check: Check) -> None:
    server = check.server("--kv-tokens 65536")

    async def run() -> tuple[int, int, int, list[float]]:
        asked = [body(own, 512, seed=i, stream=True) for i, own in enumerate(prompts(64, 64))]
        await streams.all_at_once(server.address, posts(server, asked), 300)
        before = server.memory_bytes()
        silent = []
        began = time.monotonic()
        for _ in range(100):
            silent += await asyncio.gather(*(streams.connect(server.address) for _ in range(100)))
        for stream in silent:  # one request each, so that they are idle ones between two
            stream.ask(f"GET /health HTTP/1.1\r\nHost: {server.address.host}\r\n\r\n".encode())
        while any(not stream.pieces for stream in silent):
            await asyncio.sleep(0.02)
        took = time.monotonic() - began
        print(f"10,000 connections, an answer each, in {took:.2f} s", file=sys.stderr)
        again = posts(server, [each | {"seed": 7} for each in asked])
        running = asyncio.create_task(streams.all_at_once(server.address, again, 300))
        health = []
        while not running.done():
            await asyncio.sleep(0.02)
            begin = time.perf_counter()
            await streams.ask(server.address, "GET", "/health")
            health.append((time.perf_counter() - begin) * 1e3)
        answers, _ = await running
        after = server.memory_bytes()
        bad = sum(bool(answer.fault) for answer in answers)
        closed = sum(stream.ended.done() for stream in silent)
        for stream in silent:
            stream.drop()
        return after - before, bad, closed, health

    try:
        more, bad, closed, health = asyncio.run(run())
        check.tell("memory more", more / 1e6, "MB", most=200)
        check.tell("of 64 streams, that failed", bad, "streams", most=0)
        check.tell("of 10,000 idle connections, that were closed", closed, "connections", most=0)
        check.tell("/health p50", statistics.median(health), "ms")
        check.tell("/health p99", load.percentile(health, 0.99), "ms", most=20)
    finally:
        server.stop()


async def settled(server: servers.Server) -> dict[str, float]:
    """Counts, once nothing runs and waits."""
    for _ in range(3000):
        text = (await streams.ask(server.address, "GET", "/metrics", key=server.key)).body.decode()
        values = {line.split(" ")[0].split("{")[0]: float(line.split(" ")[1]) for line in text.splitlines()
                  if line and not line.startswith("#")}
        if values["dendrite:num_requests_running"] == 0 and values["dendrite:num_requests_waiting"] == 0:
            return values
        await asyncio.sleep(0.01)
    raise SystemExit("requests of clients that went run on after 30 s")


def gone(check: Check) -> None:
    """Two servers are asked the same prompts to their ends, so that they remember the same; from one, clients went before."""
    owns, new = prompts(250, 200, seed=5), prompts(250, 1000, seed=6)

    async def leave(server: servers.Server, asked: list[bytes], wait: Callable[[streams.Stream], bool], at_once: int,
                    reads: bool = True) -> None:
        """Each goes when that holds of it."""
        for begin in range(0, len(asked), at_once):
            some = []
            for request in asked[begin:begin + at_once]:
                some.append(await streams.connect(server.address))
                if not reads and some[-1].transport is not None:
                    some[-1].transport.pause_reading()
                some[-1].ask(request)
            until = time.monotonic() + 60
            while not all(wait(stream) for stream in some) and time.monotonic() < until:
                await asyncio.sleep(0.002)
            for stream in some:
                stream.drop()
            await settled(server)

    async def counts(server: servers.Server, is_left: bool) -> dict[str, float]:
        if is_left:
            begin = time.monotonic()
            asked, long_ones = (posts(server, [body(own, 2000, seed=i, stream=True) for i, own in enumerate(each)])
                                for each in (owns, new))
            await leave(server, long_ones, lambda stream: time.perf_counter() > stream.sent + 0.02, 10)  # in their prompts
            await leave(server, asked, lambda stream: True, 250)  # most of them in line
            await leave(server, asked, lambda stream: len(stream.pieces) > 5, 32)  # while they read
            await leave(server, asked, lambda stream: time.perf_counter() > stream.sent + 1, 32, reads=False)
            print(f"1,000 clients went in {time.monotonic() - begin:.1f} s", file=sys.stderr)
        answers, _ = await streams.all_at_once(server.address, posts(server, [body(own, 1) for own in owns + new]), 300)
        if any(answer.fault for answer in answers):
            raise SystemExit("gone: " + next(answer.fault for answer in answers if answer.fault))
        return await settled(server)

    found = []
    for is_left in (False, True):
        server = check.server("--kv-tokens 524288", "--max-num-seqs 32")  # (32 at a time, so that there is a line)
        try:
            found.append(asyncio.run(counts(server, is_left)))
        finally:
            server.stop()
    before, after = found
    for name in ("dendrite_pages_used", "dendrite_branches_live"):
        check.tell(f"{name}, without those that went {before[name]:.0f}; more", after[name] - before[name], "", most=0)


PARTS: dict[str, Callable[[Check], None]] = {"equal": equal, "throughput": throughput, "one": one, "long": long, "tenants": tenants,
                                             "idle": idle, "gone": gone}


def main() -> int:
    root = load.ROOT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", default=[], help=", ".join(PARTS))
    parser.add_argument("--build", default=str(root / "build"))
    parser.add_argument("--model", default=str(root / "models/dendrite-24"))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--trials", type=int, default=3, help="of throughput and one")
    parser.add_argument("--json", type=pathlib.Path, help="writes what was found there")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"got {', '.join(sorted(unknown))}; expected parts of: {', '.join(PARTS)}")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print("| part | what | found | bound | | load |\n| --- | --- | --- | --- | --- | --- |")
    found = []
    for name in options.parts or PARTS:
        check = Check(options, name)
        PARTS[name](check)
        found += check.found
    if options.json:
        options.json.write_text(json.dumps({"date": load.provenance.run_json("", "", "", "", [])["date"], "found": found}) + "\n",
                                encoding="utf-8")
    return 1 if any(not each["holds"] for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
