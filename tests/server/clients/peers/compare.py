"""The checks and the programs' tests on dendrite serve and on llama-server, with the same models, as Markdown for
docs/server.md. Why something is "no" is said on stderr.

    compare.py DENDRITE LLAMA_SERVER BUILD CLIENT=PYTHON...

LLAMA_SERVER: a program that takes the options of DENDRITE. BUILD: of llama.cpp. PYTHON: of the environment of
test_CLIENT.py.
"""
import contextlib
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import checks

ROOT = pathlib.Path(__file__).resolve().parents[4]
CLIENTS = ROOT / "tests" / "server" / "clients"
sys.path += [str(CLIENTS), str(ROOT / "scripts" / "agents")]
import scripted_model  # noqa: E402
from served import served  # noqa: E402

LIMIT_S = 300  # for one program's tests


def passes(check, server, name):
    _, what, function = check
    try:
        if function(server):
            return "yes"
        reason = "not so"
    except Exception as error:  # noqa: BLE001 - whatever a client throws, it did not work
        reason = f"{type(error).__name__}: {error}"
    print(f"{name}: {what}: {reason[:300]}", file=sys.stderr)
    return "no"


def check_all(name):
    """What passes on the server that DENDRITE_PROGRAM is."""
    tools = [tool.get("function", tool) for tool in json.loads((ROOT / "models/dendrite-tools/tools.json").read_text())]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        scripted_model.write(pathlib.Path(folder))
        urls = [stack.enter_context(served(model, "--served-model-name", "m")) for model in ("dendrite-tools", folder)]
        server = checks.Server(*urls, tools)
        return [passes(check, server, name) for check in checks.ALL]


def run_tests(client, python, name):
    """How many of a program's tests pass, of how many."""
    done = subprocess.run([python, "-m", "unittest", "-v", f"test_{client}"], cwd=CLIENTS, text=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=LIMIT_S)
    for line in re.findall(r"^(?:FAIL|ERROR): .*", done.stderr, re.MULTILINE):
        print(f"{name}: {client}: {line}", file=sys.stderr)
    passed = len(re.findall(r"\.\.\. ok$", done.stderr, re.MULTILINE))
    return f"{passed} of {re.search(r'^Ran ([0-9]+) test', done.stderr, re.MULTILINE)[1]}"


def run_node_tests(name):
    """The same of the ai SDK and the clients for Node."""
    done = subprocess.run([CLIENTS / "node" / "run.sh"], text=True, stdout=subprocess.PIPE, timeout=LIMIT_S)
    for line in re.findall(r"^✖ .*(?= \()", done.stdout, re.MULTILINE):
        print(f"{name}: node: {line}", file=sys.stderr)
    return " of ".join(re.search(rf"^ℹ {what} ([0-9]+)$", done.stdout, re.MULTILINE)[1] for what in ("pass", "tests"))


def table(first, columns, rows):
    print(f"\n| {first} | {' | '.join(columns)} |\n| --- | {' | '.join('---' for _ in columns)} |")
    for what, said in rows:
        print(f"| {what} | {' | '.join(said)} |")


def main(dendrite, llama_server, llama_build, *clients):
    checked, tested = {}, {}
    for name, program in (("dendrite", dendrite), ("llama-server", llama_server)):
        os.environ["DENDRITE_PROGRAM"] = program
        checked[name] = check_all(name)
        tested[name] = [*(run_tests(*client.split("="), name) for client in clients), run_node_tests(name)]

    version = subprocess.run([dendrite, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"dendrite {version}, llama.cpp build {llama_build}, {datetime.date.today():%d %B %Y}. "
          f"Of {len(checks.ALL)} checks "
          + ", ".join(f"{name} passes {said.count('yes')}" for name, said in checked.items()) + ".\n")
    rows = list(zip(checks.ALL, zip(*checked.values(), strict=True), strict=True))
    right = {}
    for (group, what, _), said in rows:
        if set(said) == {"yes"}:
            right.setdefault(group, []).append(what)
    print("Both get right:\n\n" + "\n".join(f"- *{group}*: {'; '.join(what)}" for group, what in right.items()))
    table("OpenAI's and Anthropic's clients", checked,
          [(f"{group}: {what}", said) for (group, what, _), said in rows if set(said) != {"yes"}])
    table("tests of programs that pass", tested,
          [(program.split("=")[0], said)
           for program, *said in zip([*clients, "the ai SDK, Node"], *tested.values(), strict=True)])


if __name__ == "__main__":
    main(*sys.argv[1:])
