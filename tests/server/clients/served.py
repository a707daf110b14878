"""A server of a model, shipped or in a folder, for tests of clients."""
import contextlib
import os
import pathlib
import re
import subprocess

MODELS = pathlib.Path(__file__).resolve().parents[3] / "models"


@contextlib.contextmanager
def served(model, *flags):
    """Its address, while it runs; it has to end well."""
    command = [os.environ["DENDRITE_PROGRAM"], "serve", "--model", str(MODELS / model), "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        yield re.search(r"http://\S+", line)[0]
    finally:
        process.terminate()
        status = process.wait(timeout=60)
        process.stdout.close()
    assert status == 0, f"the server ended with {status}"
