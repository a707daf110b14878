"""`dendrite serve` as a process: where it listens, what it writes, how it ends.

    process_test.py PROGRAM [unittest arguments]
"""
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import unittest

from process import Served, events

PROGRAM = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"


def ask(tokens, **more):
    return {"messages": [{"role": "user", "content": "Timer 5 min"}], "max_tokens": tokens, "ignore_eos": True} | more


def begin(server, body):
    """A stream that has begun: its connection and reply, of which the first event is read."""
    connection = server.connect()
    connection.request("POST", CHAT, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    next(events(reply))
    return connection, reply


class Sockets(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "dendrite.sock"

    def start(self, *more):
        server = Served(PROGRAM, "dendrite-tools", "--uds", str(self.path), *more, port=False)
        self.addCleanup(lambda: server.process.poll() is None and server.stop(signal.SIGKILL))
        line = server.process.stdout.readline()
        self.assertEqual(line, f"listening on unix:{self.path}\n", server.errors)
        return server

    def get(self, path):
        """By curl, where it is."""
        if shutil.which("curl"):
            got = subprocess.run(["curl", "-sS", "--unix-socket", self.path, f"http://localhost{path}"], capture_output=True, text=True)
            self.assertEqual(got.returncode, 0, got.stderr)
            return got.stdout
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.path))
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: client.recv(65536), b"")).decode().partition("\r\n\r\n")[2]

    def refused(self, *more):
        """What it says of why it does not start."""
        server = Served(PROGRAM, "dendrite-tools", "--uds", str(self.path), *more, port=False)
        self.assertNotEqual(server.end(), 0)
        return "".join(server.errors)

    def test_serves_this_user_alone_and_removes_its_socket(self):
        server = self.start("--log-requests")
        self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o600)
        self.assertEqual(json.loads(self.get("/v1/models"))["data"][0]["id"], "dendrite-tools")
        self.assertEqual(server.stop(), 0)
        self.assertFalse(self.path.exists())
        line = json.loads(server.errors[-1])
        self.assertEqual((line["path"], line["status"], line["peer"]), ("/v1/models", 200, ""))

    def test_a_socket_of_one_that_was_killed_is_replaced(self):
        self.start().stop(signal.SIGKILL)
        self.assertTrue(self.path.exists())
        self.start()
        self.assertEqual(json.loads(self.get("/health")), {"status": "ok"})

    def test_takes_nothing_from_others(self):
        self.start()
        self.assertIn("another server listens there", self.refused())
        self.assertEqual(json.loads(self.get("/health")), {"status": "ok"})
        self.path = self.path.with_name("file")
        self.path.write_text("kept")
        self.assertIn("no socket", self.refused())
        self.assertEqual(self.path.read_text(), "kept")
        self.path = self.path.with_name("x" * 120)
        self.assertIn("expected at most 107", self.refused())
        self.path = self.path.with_name("s")
        self.assertIn("--host excludes --uds", self.refused("--host", "127.0.0.1"))


class Ending(unittest.TestCase):
    def start(self, *flags):
        server = Served(PROGRAM, "dendrite-tools", *flags).listening()
        self.addCleanup(lambda: server.process.poll() is None and server.stop(signal.SIGKILL))
        return server

    def test_what_runs_ends_what_waits_and_comes_is_refused(self):
        server = self.start("--max-num-seqs", "1", "--shutdown-timeout", "600")
        connection, running = begin(server, ask(900, n=6))  # for much longer than all that follows takes
        waiting = []
        waiter = threading.Thread(target=lambda: waiting.append(server.ask("POST", CHAT, ask(1))))
        waiter.start()
        while 'num_requests_waiting{model_name="dendrite-tools"} 1' not in server.ask("GET", "/metrics", None)[1]:
            pass
        late = server.connect()
        self.assertEqual(server.ask("GET", "/ready", None, late), (200, {"status": "ok"}))
        server.process.send_signal(signal.SIGTERM)
        waiter.join()
        self.assertEqual(waiting[0][0], 503)
        self.assertEqual(waiting[0][1]["error"]["code"], "shutting_down")
        # As long as the stream is there, others are told.
        try:
            self.assertEqual(server.ask("GET", "/ready", None, late), (503, {"status": "shutting_down"}))
            self.assertEqual(server.ask("GET", "/health", None, late), (200, {"status": "ok"}))
            self.assertEqual(server.ask("POST", CHAT, ask(1), late)[1]["error"]["code"], "shutting_down")
        except (http.client.HTTPException, OSError):
            pass  # it has ended already
        self.assertEqual([each["choices"][0]["finish_reason"] for each in events(running) if each["choices"]][-1], "length")
        self.assertEqual(server.end(), 0)
        connection.close()
        late.close()

    def test_the_rest_hears_an_error(self):
        server = self.start("--shutdown-timeout", "0")
        streams = [begin(server, ask(900, seed=seed, n=4)) for seed in range(3)]
        server.process.send_signal(signal.SIGTERM)
        for connection, reply in streams:
            last = list(events(reply))[-1]
            self.assertEqual(last["error"]["code"], "shutting_down", last)
            connection.close()
        self.assertEqual(server.end(), 0)

    def test_idle_it_ends_at_once(self):
        for how in (signal.SIGTERM, signal.SIGINT):
            server = self.start()
            with_nothing = server.connect()
            self.assertEqual(server.ask("GET", "/ready", None, with_nothing)[0], 200)
            self.assertEqual(server.stop(how), 0)
            with_nothing.close()


class SeveralModels(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.store = pathlib.Path(folder.name) / "store"

    def start(self, first, *more):
        server = Served(PROGRAM, first, *more, "--response-store", str(self.store), "--memory", "256MiB")
        self.addCleanup(lambda: server.process.poll() is None and server.stop(signal.SIGKILL))
        return server.listening()

    def test_what_each_has_stored_survives_apart(self):
        puzzles = f"puzzles/24={ROOT / 'models/dendrite-24'}"
        server = self.start("dendrite-tools", "--model", puzzles)
        made = {}
        for model in ("dendrite-tools", "puzzles/24"):
            status, branches = server.ask("POST", "/v1/branches", {"model": model, "prompt": "4 5 6"})
            self.assertEqual(status, 200, branches)
            status, response = server.ask("POST", "/v1/responses", {"model": model, "input": "Timer 5 min", "max_output_tokens": 4})
            self.assertEqual(status, 200, response)
            made[model] = branches["data"][0], response
        server.stop(signal.SIGKILL)
        self.assertEqual(sorted(path.name for path in self.store.iterdir()), ["dendrite-tools", "puzzles%2f24"])
        server = self.start("dendrite-24", "--model", puzzles, "--model", str(ROOT / "models/dendrite-tools"))  # in another order
        self.assertEqual([one["id"] for one in server.ask("GET", "/v1/models")[1]["data"]],
                         ["dendrite-24", "puzzles/24", "dendrite-tools"])
        for model, (branch, response) in made.items():
            self.assertEqual(server.ask("GET", f"/v1/responses/{response['id']}"), (200, response))
            self.assertEqual(server.ask("GET", f"/v1/branches/{branch['id']}")[1]["length"], branch["length"])
            for body in ({"branch_id": branch["id"]}, {"response_id": response["id"]}):
                status, error = server.ask("POST", "/v1/branches", body | {"model": "dendrite-24"})
                self.assertEqual(status, 400, error)
                self.assertIn(f'is of the model "{model}"', error["error"]["message"])
            self.assertEqual(server.ask("POST", f"/v1/branches/{branch['id']}/decode", {"max_tokens": 2})[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_what_can_not_be_is_refused(self):
        tools = str(ROOT / "models/dendrite-tools")
        for flags, part in ((["--model", tools], "two models are called dendrite-tools"),
                            (["--model", f"b={tools}", "--served-model-name", "m"], "--served-model-name"),
                            (["--model", f"b={tools}", "--memory", "1MiB"], "weights take"),
                            (["--model", f"b={tools}/none"], "none")):
            server = Served(PROGRAM, "dendrite-tools", *flags)
            self.assertEqual(server.end(), 1, flags)
            self.assertIn(part, "".join(server.errors))


class Container(unittest.TestCase):
    """What its image is asked and says of its health, of a server without one."""

    def run_script(self, *command):
        done = subprocess.run([ROOT / command[0], *command[1:]], capture_output=True, text=True)
        return done.returncode, done.stderr

    def test_its_parts_without_a_runtime(self):
        os.environ["DENDRITE_API_KEY"] = "a-key"
        try:
            server = Served(PROGRAM, "dendrite-tools").listening()
        finally:
            del os.environ["DENDRITE_API_KEY"]
        url = f"http://127.0.0.1:{server.port}"
        self.assertEqual(self.run_script("scripts/container.sh", "ask", url, "a-key"), (0, ""))
        status, why = self.run_script("scripts/container.sh", "ask", url, "another")
        self.assertEqual((status, why), (1, "container: /v1/models: got 401; expected 200\n"))
        self.assertEqual(self.run_script("packaging/container/health.sh", str(server.port))[0], 0)
        self.assertEqual(server.stop(), 0)
        self.assertNotEqual(self.run_script("packaging/container/health.sh", str(server.port))[0], 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
