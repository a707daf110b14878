"""Runs a command with limits on time, memory and files, without network where the system allows it:
for tests of programs that a model wrote.

It guards against accidents (loops, leaks, floods, leftovers), not against malice: the command has
the user's rights on files. It needs Linux with util-linux (prlimit, unshare), as every distribution
has it. Nothing runs in this process between fork and exec, so threads are no danger.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import pathlib
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    seconds: float = 10  # then all of its processes are killed
    cpu_seconds: int = 2  # of each process
    memory_bytes: int = 1 << 29  # address space of each process
    file_bytes: int = 1 << 20  # of each file that it writes, its output included
    output_bytes: int = 1 << 16  # read of its output


@dataclasses.dataclass(frozen=True)
class Outcome:
    passed: bool  # it ended by itself with exit status 0
    end: str  # "exit status 1", "signal 11 (Segmentation fault)", "ran out of time"
    output: str  # stdout and stderr as they came


@functools.cache
def isolation() -> tuple[str, ...]:
    """What puts a command into namespaces of its own: no network, and every process that it leaves
    behind dies with it. Empty where the system forbids it (some containers do)."""
    words = ("unshare", "--user", "--map-current-user", "--net", "--pid", "--fork", "--kill-child")
    try:
        tried = subprocess.run([*words, "true"], capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return words if tried.returncode == 0 else ()


async def run(
    command: Sequence[str], files: Mapping[str, str], limits: Limits = Limits()
) -> Outcome:
    """Runs it in an empty folder that holds `files`, removed afterwards, with an environment of
    PATH, HOME and TMPDIR. Cancelled, it kills the command first."""
    words = [
        *isolation(),
        "prlimit",
        f"--cpu={limits.cpu_seconds}",
        f"--as={limits.memory_bytes}",
        f"--fsize={limits.file_bytes}",
        "--core=0",
        # The first process of a namespace ignores most signals: that is the shell.
        *("/bin/sh", "-c", '"$@"; exit $?', "sh", *command),
    ]
    with tempfile.TemporaryDirectory(prefix="sandbox-") as name, tempfile.TemporaryFile() as output:
        for file, text in files.items():
            (pathlib.Path(name) / file).write_text(text, encoding="utf-8")
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=name,
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": name, "TMPDIR": name},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        end = ""
        try:
            await asyncio.wait_for(process.wait(), limits.seconds)
        except TimeoutError:
            end = "ran out of time"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # nothing was left
            status = await process.wait()
        output.seek(0)
        text = output.read(limits.output_bytes).decode(errors="replace")
    return Outcome(status == 0 and not end, end or _told(status), text)


def _told(status: int) -> str:
    """Of an exit status, or of a signal as a negative one, or as shells report it."""
    number = -status if status < 0 else status - 128
    if not 0 < number < signal.NSIG:
        return f"exit status {status}"
    if number in (signal.SIGXCPU, signal.SIGKILL):
        return "ran out of time"
    return f"signal {number} ({signal.strsignal(number)})"
