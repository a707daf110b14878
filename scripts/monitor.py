#!/usr/bin/env python3
"""A line a second of what a server does, from its /metrics. Standard library only.

  scripts/monitor.py [http://127.0.0.1:8000] [--every SECONDS] [--count LINES] [--key KEY]

  tok/s     tokens generated, of the seconds between two lines       run, wait   requests that compute, and that wait
  GB/s      read by steps in the time that they took                 rows        of a step, in the mean
  pages     of the pool, in use      filled   slots of those pages that hold K and V
  prefix    of prompts' tokens looked for, those found               chunks      of chunks wanted, those that were there
  first, gap    time to the first token and between tokens, means in ms

Rates and means are of what came between two lines; `-`: nothing did. The names are Prometheus's (docs/server.md).
"""
from __future__ import annotations

import argparse
import sys
import time
import urllib.error
import urllib.request

COLUMNS = ["tok/s", "run", "wait", "rows", "GB/s", "pages", "filled", "prefix", "chunks", "first", "gap"]


def values(text: str) -> dict[str, float]:
    """By names without labels and without the prefix that a server was told; counters of several labels are summed."""
    out: dict[str, float] = {}
    for line in text.splitlines():
        if not line or line.startswith("#") or "_bucket" in line:
            continue
        name, _, value = line.rpartition(" ")
        name = name.split("{")[0].split(":")[-1]
        out[name] = out.get(name, 0.0) + float(value)
    return out


def cells(before: dict[str, float], now: dict[str, float], seconds: float) -> list[str]:
    def more(*names: str) -> float:
        return sum(now.get(name, 0.0) - before.get(name, 0.0) for name in names)

    def by(part: float, whole: float, form: str, times: float = 1) -> str:
        return format(part / whole * times, form) if whole > 0 else "-"

    def mean(name: str) -> str:
        return by(more(f"{name}_seconds_sum"), more(f"{name}_seconds_count"), ".2f", 1e3)

    return [by(more("dendrite_tokens_generated_total"), seconds, ".0f"), f"{now['num_requests_running']:.0f}",
            f"{now['num_requests_waiting']:.0f}", by(more("dendrite_rows_total"), more("dendrite_steps_total"), ".1f"),
            by(more("dendrite_bytes_read_total"), more("dendrite_step_seconds_total"), ".1f", 1e-9),
            by(now["dendrite_pages_used"], now["dendrite_pool_pages"], ".1%"), f"{now['dendrite_pool_utilisation']:.1%}",
            by(more("dendrite_prefix_hit_tokens_total"), more("dendrite_prefix_looked_up_tokens_total"), ".1%"),
            by(more("dendrite_chunk_hits_total", "dendrite_chunk_read_hits_total"),
               more("dendrite_chunk_lookups_total", "dendrite_chunk_reads_total"), ".1%"),
            mean("time_to_first_token"), mean("inter_token_latency")]


def read(url: str, key: str) -> dict[str, float]:
    request = urllib.request.Request(url.rstrip("/") + "/metrics", headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return values(answer.read().decode())
    except (urllib.error.URLError, OSError) as error:
        sys.exit(f"monitor: {url}: {error}; expected a server of `dendrite serve`")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("--every", type=float, default=1, metavar="SECONDS")
    parser.add_argument("--count", type=int, default=0, metavar="LINES", help="0: until it is interrupted")
    parser.add_argument("--key", default="", help="where the server wants one")
    options = parser.parse_args()
    before, then, lines = read(options.url, options.key), time.monotonic(), 0
    while options.count == 0 or lines < options.count:
        if lines % 20 == 0:
            print(" ".join(f"{name:>8}" for name in COLUMNS))
        time.sleep(options.every)
        now, when = read(options.url, options.key), time.monotonic()
        print(" ".join(f"{cell:>8}" for cell in cells(before, now, when - then)), flush=True)
        before, then, lines = now, when, lines + 1


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
