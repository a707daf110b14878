"""Kills `dendrite serve --response-store` at random moments: what was acknowledged is there afterwards, and can be gone on from.

    crash_test.py PROGRAM [--kills N] [--seed S]

A response is acknowledged by its whole reply or by `response.completed`, a deletion by its reply. After each kill every
one of them is asked for again, and some are gone on from, whose bits have to be those of the whole conversation sent to
a server that was never killed.
"""
import argparse
import contextlib
import http.client
import json
import random
import signal
import sys
import tempfile
import threading
import time

from process import Served, events

WORKERS = 4
MOST = "1000000"  # responses: 200 kills make more than the 10,000 that are kept by default
LOST = (http.client.HTTPException, OSError)  # what a client sees of a kill


class Known:
    """What the server has acknowledged; of all workers."""

    def __init__(self):
        self.lock = threading.Lock()
        self.responses, self.inputs, self.deleted, self.unsure = {}, {}, set(), set()

    def put(self, response, conversation):
        with self.lock:
            self.responses[response["id"]] = response
            self.inputs[response["id"]] = conversation

    def take(self, draws):
        """One of them, or None; another worker may delete it at any time."""
        with self.lock:
            ids = list(self.responses)
            return draws.choice(ids) if ids else None

    def assert_deleted(self, parent, status, answer):
        """The one refusal there may be: another worker deleted the parent after it was taken."""
        with self.lock:
            assert parent in self.unsure | self.deleted, (status, answer)
        assert status == 400 and answer["error"]["code"] == "previous_response_not_found", (status, answer)

    def whole(self, id):
        """The conversation up to and with it, as a client without ids would send it."""
        return self.inputs[id] + [item for item in self.responses[id]["output"]]


def message(text):
    return {"role": "user", "content": text}


def make(server, known, draws, connection):
    text = f"Timer {draws.randrange(100)} min"
    parent = known.take(draws) if draws.random() < 0.6 else None
    body = {"input": text, "max_output_tokens": draws.randrange(1, 20), "seed": draws.randrange(1 << 30)}
    with known.lock:
        if parent in known.responses and len(known.inputs[parent]) < 6:
            body["previous_response_id"] = parent
            conversation = known.whole(parent) + [message(text)]
        else:
            conversation = [message(text)]
    if draws.random() < 0.5:
        status, response = server.ask("POST", "/v1/responses", body, connection)
        if status == 200:
            known.put(response, conversation)
        else:
            known.assert_deleted(parent, status, response)
        return
    connection.request("POST", "/v1/responses", json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        known.assert_deleted(parent, reply.status, json.loads(reply.read()))
        return
    for event in events(reply):
        if event["type"] in ("response.completed", "response.incomplete"):
            known.put(event["response"], conversation)
    reply.read()


def delete(server, known, draws, connection):
    id = known.take(draws)
    if id is None:
        return
    with known.lock:
        if known.responses.pop(id, None) is None:
            return
        known.unsure.add(id)  # until the reply: it may be gone or not
    status, _ = server.ask("DELETE", f"/v1/responses/{id}", None, connection)
    assert status == 200, status
    with known.lock:
        known.unsure.discard(id)
        known.deleted.add(id)


def work(server, known, seed, failures):
    draws = random.Random(seed)
    try:
        with contextlib.closing(server.connect()) as connection:
            while True:
                (delete if draws.random() < 0.15 else make)(server, known, draws, connection)
    except LOST:
        pass
    except Exception as error:  # told by the main thread
        failures.append(error)


def check(server, known, reference, draws):
    with contextlib.closing(server.connect()) as connection:
        for id, response in known.responses.items():
            status, got = server.ask("GET", f"/v1/responses/{id}", None, connection)
            assert status == 200 and got == response, f"{id}: got {status} {got}; expected {response}"
        for id in known.deleted:
            status, _ = server.ask("GET", f"/v1/responses/{id}", None, connection)
            assert status == 404, f"{id}: got {status}; expected 404, for its deletion was acknowledged"
        for id in draws.sample(sorted(known.responses), min(3, len(known.responses))):
            body = {"max_output_tokens": 12, "seed": draws.randrange(1 << 30), "store": False,
                    "include": ["message.output_text.logprobs"], "top_logprobs": 2}
            _, by_id = server.ask("POST", "/v1/responses", body | {"previous_response_id": id, "input": "And then?"}, connection)
            _, anew = reference.ask("POST", "/v1/responses", body | {"input": known.whole(id) + [message("And then?")]})
            outputs = [[item.get("content") for item in got["output"]] for got in (by_id, anew)]
            assert outputs[0] and outputs[0] == outputs[1], f"behind {id}: {outputs[0]}; expected {outputs[1]}"


def run(program, kills, seed, folder):
    draws = random.Random(seed)
    known = Known()
    reference = Served(program, "dendrite-tools").listening()
    try:
        for kill in range(kills + 1):
            server = Served(program, "dendrite-tools", "--response-store", folder, "--max-stored-responses", MOST)
            try:
                if kill and draws.random() < 0.1:  # while it starts, and reads or writes its journal
                    time.sleep(draws.uniform(0, 0.3))
                    server.stop(signal.SIGKILL)
                    continue
                server.listening()
                check(server, known, reference, draws)
                if kill == kills:
                    break
                failures = []
                workers = [threading.Thread(target=work, args=(server, known, draws.random(), failures)) for _ in range(WORKERS)]
                for worker in workers:
                    worker.start()
                time.sleep(draws.uniform(0, 0.4))
                server.stop(signal.SIGKILL)
                for worker in workers:
                    worker.join()
                assert not failures, failures
            finally:
                if server.process.poll() is None:
                    server.stop(signal.SIGKILL)
    finally:
        reference.stop()
    return known


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        known = run(options.program, options.kills, options.seed, folder)
    assert known.responses, "nothing was acknowledged"
    print(f"{options.kills} kills: {len(known.responses)} responses and {len(known.deleted)} deletions that were acknowledged "
          f"hold; {len(known.unsure)} deletions were cut off")


if __name__ == "__main__":
    sys.exit(main())
