"""llama-server in the place of `dendrite serve`, so that one test runs on both: it reads the same options,
says where it listens, and ends with SIGTERM.

    llama_server.py LLAMA_SERVER serve --model FOLDER_OR_FILE --port 0 [--served-model-name NAME] [--api-key-file FILE]

A GGUF file is served as it is, without its chat template, and a folder as a file of it.
"""
import argparse
import contextlib
import json
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import write_gguf

SLOTS = 4
MOST_CONTEXT = 8192


def main(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--port", choices=["0"], required=True)
    parser.add_argument("--served-model-name")
    parser.add_argument("--api-key-file")
    asked = parser.parse_args(words)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        if asked.model.suffix == ".gguf":
            file, more = asked.model, ["--no-jinja", "--chat-template", "chatml"]
        else:
            file = pathlib.Path(folder) / "model.gguf"
            write_gguf.write(asked.model, file)
            positions = json.loads((asked.model / "config.json").read_text())["max_position_embeddings"]
            more = ["--jinja", "--ctx-size", str(SLOTS * min(positions, MOST_CONTEXT))]
        more += ["--api-key-file", asked.api_key_file] if asked.api_key_file else []
        process = subprocess.Popen(
            [asked.program, "--model", file, "--alias", asked.served_model_name or asked.model.name,
             "--host", "127.0.0.1", "--port", str(port), "--device", "none", "--parallel", str(SLOTS), *more],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        url = f"http://127.0.0.1:{port}"
        while process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(url + "/health"):
                break
            time.sleep(0.1)
        else:
            sys.exit(f"{asked.program}: ended with status {process.returncode}; expected it to listen")
        print(f"listening on {url}", flush=True)
        process.wait()


if __name__ == "__main__":
    main(sys.argv[1:])
