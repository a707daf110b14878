#!/usr/bin/env python3
"""Hours of mixed load on `dendrite serve`: does it keep its memory, its descriptors, its pages and its promises?

    scripts/soak.py [--program build/bin/dendrite] [--hours 8] [--clients 16] [--seed 1]

Clients chat, whole and streamed, with tools and schemas; go away in the queue, in the prompt and in the middle of an
answer; fork branches; go on from stored responses and fork those that are being written; search, decide, and send what is no
request. All is drawn from --seed. A line a minute says how it is. In the end nothing may have failed: no status of 500, no
answer that differs from an earlier one to the same request with the same seed, no growth of memory or descriptors since
the second quarter, nothing that still runs, and an exit status of 0. Exit status: 0 where all that holds, else 1.
"""
import argparse
import collections
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/server"))
from process import Served, events  # noqa: E402

MODEL = "dendrite-tools"
FLAGS = ("--kv-tokens", "16384", "--max-num-seqs", "24", "--max-num-queued-reqs", "64", "--max-stored-responses", "400")
EXPECTED = {200, 400, 404, 409, 429, 503}
SPARE_MIB, SPARE_FILES = 24, 8  # that the last quarter may have more than the second; the first fills pools and stores
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "day": {"enum": ["today", "tomorrow"]}},
          "required": ["city", "day"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_time", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


class Soak:
    def __init__(self, server):
        self.server = server
        self.lock = threading.Lock()
        self.counts, self.statuses, self.faults = collections.Counter(), collections.Counter(), []
        self.answers = {}
        self.ending = threading.Event()

    def fault(self, text):
        with self.lock:
            self.faults.append(text[:500])
            if len(self.faults) <= 10:
                print(f"FAULT {text[:500]}", flush=True)

    def seen(self, status, answer):
        with self.lock:
            self.statuses[status] += 1
        if status not in EXPECTED:
            self.fault(f"status {status}: {answer}")

    def same(self, request, answer):
        """The same request has the same answer, whenever it is asked."""
        with self.lock:
            known = self.answers.setdefault(request, answer)
        if known != answer:
            self.fault(f"{request}: got {answer!r}; before it was {known!r}")


class Client:
    def __init__(self, soak, seed):
        self.soak, self.draws = soak, random.Random(seed)
        self.response = None

    def run(self):
        kinds = [(8, self.chat), (8, self.stream), (3, self.go_while_it_waits), (3, self.go_in_the_middle), (4, self.branches),
                 (6, self.responses), (2, self.fork_running), (2, self.messages), (2, self.decide), (1, self.search),
                 (6, self.malformed)]
        weights, functions = zip(*kinds)
        while not self.soak.ending.is_set():
            function = self.draws.choices(functions, weights)[0]
            try:
                function()
            except Exception as error:  # no answer, or one that is not what it should be
                self.soak.fault(f"{function.__name__}: {error!r}")
            with self.soak.lock:
                self.soak.counts[function.__name__] += 1

    def ask(self, method, path, body=None):
        """The answer, or None where it is refused."""
        status, answer = self.soak.server.ask(method, path, body)
        self.soak.seen(status, answer)
        return answer if status == 200 else None

    def text(self):
        return self.draws.choice(["Timer {} min", "What time is it in city {}?", "Weather on day {}", "Add item {}"]).format(self.draws.randrange(40))

    def chat_body(self, seeds=1 << 30):
        body = {"messages": [{"role": "user", "content": self.text()}], "max_tokens": self.draws.choice([1, 8, 30, 60]),
                "seed": self.draws.randrange(seeds), "temperature": self.draws.choice([0, 0.7, 1])}
        what = self.draws.random()
        if what < 0.25:
            body |= {"tools": [TOOL], "tool_choice": self.draws.choice(["auto", "required"])}
        elif what < 0.4:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
        elif what < 0.5:
            body |= {"logprobs": True, "top_logprobs": 3}
        elif what < 0.6:
            body |= {"n": 3, "presence_penalty": 0.5}
        return body

    def chat(self):
        body = self.chat_body(seeds=2)
        answer = self.ask("POST", "/v1/chat/completions", body)
        if answer:
            said = [[choice["message"].get("content"), [call["function"] for call in choice["message"].get("tool_calls") or []],
                     choice["finish_reason"], choice.get("logprobs")] for choice in answer["choices"]]
            if "dendrite" not in answer or "finish" not in answer["dendrite"]:  # else memory ran out
                self.soak.same(json.dumps(body), said)

    @contextlib.contextmanager
    def stream_of(self, body, path="/v1/chat/completions"):
        """Its events as they come, or none where it is refused."""
        with contextlib.closing(self.soak.server.connect()) as connection:
            connection.request("POST", path, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            if reply.status == 200:
                self.soak.seen(200, "")
                yield events(reply)
            else:
                self.soak.seen(reply.status, reply.read().decode())
                yield iter(())

    def stream(self):
        body = self.chat_body()
        with self.stream_of(body) as told:
            last = None
            for event in told:
                if event.get("error") and event["error"].get("code") != "server_overloaded":
                    raise ValueError(event)
                last = event
            if last is None:
                return

    def go_while_it_waits(self):
        """In the queue, or while the prompt is computed."""
        body = self.chat_body() | {"messages": [{"role": "user", "content": self.text() * self.draws.choice([1, 20, 60])}]}
        with socket.create_connection(("127.0.0.1", self.soak.server.port)) as connection:
            text = json.dumps(body)
            connection.sendall((f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                                f"Content-Length: {len(text)}\r\n\r\n{text}").encode())
            time.sleep(self.draws.choice([0, 0.001, 0.005, 0.02]))

    def go_in_the_middle(self):
        with self.stream_of(self.chat_body() | {"max_tokens": 400, "ignore_eos": True}) as told:
            for _, _ in zip(range(self.draws.randrange(1, 12)), told):
                pass

    def branches(self):
        made = self.ask("POST", "/v1/branches", {"prompt": self.text() * self.draws.choice([1, 8]), "n": self.draws.randrange(1, 3)})
        ids = [each["id"] for each in made["data"]] if made else []
        try:
            for id in list(ids):
                forks = self.ask("POST", f"/v1/branches/{id}/fork", {"n": 2})
                ids += [each["id"] for each in forks["data"]] if forks else []
            for id in ids:
                act = self.draws.randrange(4)
                if act == 0:
                    self.ask("POST", f"/v1/branches/{id}/decode", {"max_tokens": 12})
                elif act == 1:
                    self.ask("POST", f"/v1/branches/{id}/score", {"continuations": [" a", " b c"]})
                elif act == 2:
                    self.ask("POST", f"/v1/branches/{id}/append", {"text": " and"})
                else:
                    self.ask("POST", f"/v1/branches/{id}/hold", {"hold_ms": 50})
        finally:
            for id in ids:
                self.ask("DELETE", f"/v1/branches/{id}")

    def responses(self):
        body = {"input": self.text(), "max_output_tokens": self.draws.randrange(1, 25), "store": self.draws.random() < 0.8}
        if self.response and self.draws.random() < 0.7:
            body["previous_response_id"] = self.response
        answer = self.ask("POST", "/v1/responses", body)
        self.response = None  # 404: it was the one that went
        if answer and body["store"] and answer["usage"]["total_tokens"] < 800:
            self.response = answer["id"]
            got = self.ask("GET", f"/v1/responses/{self.response}")
            if got and got != answer:
                raise ValueError(f"{got}; expected {answer}")
            if self.draws.random() < 0.2:
                self.ask("DELETE", f"/v1/responses/{self.response}")

    def fork_running(self):
        with self.stream_of({"input": self.text(), "max_output_tokens": 200, "ignore_eos": True}, "/v1/responses") as told:
            for count, event in enumerate(told):
                if count == 0:
                    running = event["response"]["id"]
                elif count == 6:
                    self.ask("POST", f"/v1/responses/{running}/fork", {"max_output_tokens": 10})
                    return

    def messages(self):
        self.ask("POST", "/v1/messages", {"max_tokens": 20, "messages": [{"role": "user", "content": self.text()}]})

    def decide(self):
        text = self.text()
        answer = self.ask("POST", "/v1/decisions", {"input": text, "questions": [
            {"type": "predicate", "instructions": "Is it about time?"},
            {"type": "choice", "instructions": "Which?", "choices": [{"value": "one"}, {"value": "two"}]}]})
        if answer:
            self.soak.same(f"decide {text}", answer["answers"])

    def search(self):
        self.ask("POST", "/v1/searches", {"input": self.text(), "max_tokens": 12, "strategy": {"type": "beam", "width": 3}})

    def malformed(self):
        what = self.draws.randrange(6)
        if what < 3:
            bodies = ['{"messages": [', "[" * 100_000, '{"a": 1, "a": 2}', '{"messages": "no"}', '{"messages": [{"role": 5}]}', "\xff",
                      '{"messages": [{"role": "user", "content": "a"}], "temperature": "hot"}']
            with contextlib.closing(self.soak.server.connect()) as connection:
                connection.request("POST", "/v1/chat/completions", self.draws.choice(bodies).encode("latin-1"),
                                   {"Content-Type": "application/json"})
                reply = connection.getresponse()
                answer = reply.read()
                if reply.status != 400:
                    raise ValueError(f"{reply.status} {answer}")
            return
        with socket.create_connection(("127.0.0.1", self.soak.server.port)) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(self.draws.choice([
                    b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc", self.draws.randbytes(300),
                    b"GET /" + b"a" * 20_000, b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]))
                connection.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    connection.recv(1000)


class Watch:
    """What the process has, now and then."""

    def __init__(self, server):
        self.server, self.folder = server, pathlib.Path("/proc") / str(server.process.pid)
        self.samples = []

    def metrics(self):
        text = self.server.ask("GET", "/metrics")[1]
        return {name: float(value) for name, value in re.findall(r"(?m)^([\w:]+)(?:\{[^}]*\})? ([\d.e+-]+)$", text)}

    def look(self):
        resident = int(re.search(r"VmRSS:\s+(\d+)", (self.folder / "status").read_text())[1]) / 1024
        metrics = self.metrics()
        sample = {"resident_mib": resident, "files": len(os.listdir(self.folder / "fd")), "pages": metrics["dendrite_pages_used"],
                  "running": metrics["dendrite:num_requests_running"], "waiting": metrics["dendrite:num_requests_waiting"],
                  "branches": metrics["dendrite_branches_live"], "tokens": metrics["dendrite_tokens_generated_total"]}
        self.samples.append(sample)
        return sample

    def most(self, name, quarter):
        count = len(self.samples)
        return max(sample[name] for sample in self.samples[count * quarter // 4:max(count * (quarter + 1) // 4, count * quarter // 4 + 1)])


def quiet(watch):
    """The first look at which nothing runs, or the last in half a minute."""
    for _ in range(60):
        sample = watch.look()
        if sample["running"] == sample["waiting"] == 0:
            break
        time.sleep(0.5)
    return sample


def soak(options, folder):
    server = Served(options.program, MODEL, *FLAGS, "--response-store", folder).listening()
    watch = Watch(server)
    load = Soak(server)
    idle = watch.look()["files"]
    watch.samples.clear()
    threads = [threading.Thread(target=Client(load, f"{options.seed} {i}").run) for i in range(options.clients)]
    begin = said = time.monotonic()
    for thread in threads:
        thread.start()
    while time.monotonic() - begin < options.hours * 3600 and server.process.poll() is None:
        time.sleep(5)
        with contextlib.suppress(OSError, http.client.HTTPException):
            now = watch.look()
        if time.monotonic() - said >= 60:
            said = time.monotonic()
            print(f"{(said - begin) / 60:6.0f} min  {sum(load.counts.values())} requests, {len(load.faults)} faults, "
                  f"{now['resident_mib']:.0f} MiB, {now['files']} files, {now['pages']:.0f} pages", flush=True)
    load.ending.set()
    for thread in threads:
        thread.join(300)
    verdicts = {"nothing failed": not load.faults, "it lives": server.process.poll() is None}
    if verdicts["it lives"]:
        last = quiet(watch)
        verdicts["nothing is left running"] = last["running"] == last["waiting"] == 0
        verdicts["memory is flat"] = watch.most("resident_mib", 3) <= watch.most("resident_mib", 1) + SPARE_MIB
        verdicts["descriptors are flat"] = watch.most("files", 3) <= watch.most("files", 1) + SPARE_FILES and last["files"] <= idle + SPARE_FILES
        verdicts["it ends well"] = server.stop(signal.SIGTERM) == 0
        minutes = (time.monotonic() - begin) / 60
        resident = [f"{watch.most('resident_mib', quarter):.0f}" for quarter in range(4)]
        print(f"{minutes:.1f} min: {sum(load.counts.values())} requests {dict(load.counts)}, statuses {dict(sorted(load.statuses.items()))}, "
              f"{last['tokens']:.0f} tokens, {len(load.answers)} answers compared; MiB at most by quarters {' '.join(resident)}; "
              f"files {idle} idle, {max(s['files'] for s in watch.samples)} at most, {last['files']} after; "
              f"pages {max(s['pages'] for s in watch.samples):.0f} at most, {last['pages']:.0f} after; {last['branches']:.0f} branches after")
    for what, holds in verdicts.items():
        print(f"{'ok    ' if holds else 'FAILED'} {what}")
    return all(verdicts.values())


def main():
    parser = argparse.ArgumentParser(description="Mixed load on dendrite serve for hours")
    parser.add_argument("--program", default="build/bin/dendrite")
    parser.add_argument("--hours", type=float, default=8)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return 0 if soak(options, folder) else 1


if __name__ == "__main__":
    sys.exit(main())
