"""`dendrite serve` as a process, and HTTP to it, with Python's standard library alone."""
import http.client
import json
import pathlib
import re
import signal
import subprocess
import threading

MODELS = pathlib.Path(__file__).resolve().parents[2] / "models"


class Served:
    """A server of a shipped model; its address is read from what it says first."""

    def __init__(self, program, model, *flags, port=True):
        command = [program, "serve", "--model", str(MODELS / model), *(["--port", "0"] if port else []), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.errors = []
        self.reader = threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True)
        self.reader.start()
        self.port = None

    def listening(self):
        """Waits until it can be asked."""
        line = self.process.stdout.readline()
        found = re.search(r":(\d+)\s*$", line)
        if not found:
            raise RuntimeError(f"the server says {line!r} {self.end()} {self.errors}; expected its address")
        self.port = int(found[1])
        return self

    def connect(self, timeout=600):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, connection=None, headers=None):
        """Status and JSON, or text where it is none."""
        own = connection is None
        connection = connection or self.connect()
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"} | (headers or {}))
            reply = connection.getresponse()
            data = reply.read()
            is_json = reply.headers.get_content_type() == "application/json"
            return reply.status, json.loads(data) if is_json else data.decode()
        finally:
            if own:
                connection.close()

    def stop(self, how=signal.SIGTERM, timeout=600):
        """Its exit status."""
        self.process.send_signal(how)
        return self.end(timeout)

    def end(self, timeout=600):
        status = self.process.wait(timeout)
        self.reader.join(timeout)
        self.process.stdout.close()
        self.process.stderr.close()
        return status


def events(reply):
    """Of a stream, as they come: the data of each, without [DONE]."""
    for line in reply:
        if line.startswith(b"data: ") and line[6:].strip() != b"[DONE]":
            yield json.loads(line[6:])
