"""Codex, Claude Code and OpenCode, the programs themselves, against dendrite serve.

    run.py NODE_MODULES/.bin DENDRITE [NAME...]

Each is asked for something in two steps, which takes two calls of its shell, and goes on with the
conversation. They run in a network namespace that has loopback alone (it needs root), with homes of
their own.
"""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import scripted_model

ASK = "Do it in two steps."
LIMIT_S = 240


class Program:
    def __init__(self, bin, home, url):
        self.bin, self.home, self.url = bin, home, url
        self.work = home / "work"
        self.work.mkdir(parents=True)

    def run(self, program, *args, **variables):
        """What it wrote; a reason where it failed."""
        environment = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
        environment |= {"HOME": str(self.home), **variables}
        try:
            done = subprocess.run([self.bin / program, *args], cwd=self.work, env=environment, text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"it did not end in {LIMIT_S} s"
        if done.returncode != 0 or not re.search(r"(?m)^\s*pong\s*$", done.stdout):
            return f"exit {done.returncode}, and it ends with {done.stdout.strip()[-300:]!r}"
        return None


class Codex(Program):
    def turn(self, text, goes_on):
        settings = ["model_provider=local", "model=m", "analytics.enabled=false",
                    f'model_providers.local={{name="local",base_url="{self.url}/v1",wire_api="responses",'
                    'env_key="OPENAI_API_KEY"}']
        flags = [flag for setting in settings for flag in ("-c", setting)]
        flags += ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        home = self.home / ".codex"
        home.mkdir(exist_ok=True)
        command = ["exec", "resume", "--last", *flags, text] if goes_on else ["exec", *flags, text]
        return self.run("codex", *command, OPENAI_API_KEY="none", CODEX_HOME=str(home))


class Claude(Program):
    def turn(self, text, goes_on):
        return self.run("claude", "-p", text, "--model", "m", "--allowedTools", "Bash",
                        *(["--continue"] if goes_on else []),
                        ANTHROPIC_BASE_URL=self.url, ANTHROPIC_API_KEY="none", DISABLE_TELEMETRY="1",
                        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_AUTOUPDATER="1")


class OpenCode(Program):
    def turn(self, text, goes_on):
        folder = self.home / ".config" / "opencode"
        folder.mkdir(parents=True, exist_ok=True)
        provider = {"npm": "@ai-sdk/openai-compatible", "name": "local", "models": {"m": {"name": "m"}},
                    "options": {"baseURL": self.url + "/v1", "apiKey": "none"}}
        config = {"autoupdate": False, "provider": {"local": provider}, "model": "local/m"}
        (folder / "opencode.json").write_text(json.dumps(config))
        return self.run("opencode", "run", *(["--continue"] if goes_on else []), text,
                        XDG_CONFIG_HOME=str(self.home / ".config"))


PROGRAMS = {"codex": Codex, "claude": Claude, "opencode": OpenCode}


@contextlib.contextmanager
def served(dendrite, model):
    process = subprocess.Popen([dendrite, "serve", "--model", model, "--served-model-name", "m", "--port", "0"],
                               stdout=subprocess.PIPE, text=True)
    try:
        yield re.search(r"http://\S+", process.stdout.readline())[0]
    finally:
        process.terminate()
        process.wait()


def main(bin, dendrite, names):
    failed = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        folder = pathlib.Path(folder)
        scripted_model.write(folder / "model")
        with served(dendrite, folder / "model") as url:
            for name in names or PROGRAMS:
                program = PROGRAMS[name](pathlib.Path(bin).resolve(), folder / name, url)
                for text, goes_on in ((ASK, False), ("And again.", True)):
                    begin = time.monotonic()
                    wrong = program.turn(text, goes_on)
                    made = program.work / "two.txt"
                    if wrong is None and (not made.exists() or made.read_text() != "first\nsecond\n"):
                        wrong = "its shell was not called as it was told"
                    failed += wrong is not None
                    print(f"{'ok  ' if wrong is None else 'FAIL'} {name}: {text} ({time.monotonic() - begin:.1f} s)"
                          f"{'' if wrong is None else ': ' + wrong}", flush=True)
    return failed


if __name__ == "__main__":
    if os.environ.get("DENDRITE_LOOPBACK_ONLY") != "1":
        sys.exit(subprocess.call(["unshare", "-n", "env", "DENDRITE_LOOPBACK_ONLY=1", sys.executable, "-B", *sys.argv]))
    subprocess.check_call(["ip", "link", "set", "lo", "up"])
    sys.exit(1 if main(sys.argv[1], sys.argv[2], sys.argv[3:]) else 0)
