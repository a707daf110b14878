"""Servers to measure: ones that run, and ones that are started for it."""
from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import IO

import streams


class Server:
    """`told`: NAME=http://HOST:PORT, or NAME=COMMAND, which is started by a shell. In a command {port} stands for a free
    port; without it, the command has to say `listening on URL` on its standard output, as ours does."""

    def __init__(self, told: str, key: str = "") -> None:
        self.name, mark, self.where = told.partition("=")
        if not mark or not self.name:
            raise SystemExit(f"--server {told}: expected NAME=URL or NAME=COMMAND")
        self.key = key
        self.process: subprocess.Popen[bytes] | None = None
        self.log: IO[bytes] | None = None
        self.startup_s = 0.0
        self.url = self.where if self.where.startswith("http://") else ""

    @property
    def address(self) -> streams.Address:
        return streams.Address.of(self.url)

    def start(self, limit_s: float = 300) -> None:
        """Returns when it answers."""
        begin = time.monotonic()
        if not self.url:
            command = self.where
            if "{port}" in command:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", 0))
                    port = probe.getsockname()[1]
                command, self.url = command.replace("{port}", str(port)), f"http://127.0.0.1:{port}"
            self.log = tempfile.TemporaryFile()
            self.process = subprocess.Popen(command, shell=True, stdout=self.log, stderr=subprocess.STDOUT,
                                            start_new_session=True)
        while time.monotonic() < begin + limit_s:
            if self.process is not None and self.process.poll() is not None:
                said = self.log_tail()
                self.stop()
                raise SystemExit(f"{self.name}: it ended with status {self.process.returncode}:\n{said}")
            self.url = self.url or self.told_url()
            if self.url and asyncio.run(self.answers()):
                self.startup_s = time.monotonic() - begin
                return
            time.sleep(0.1)
        said = self.log_tail()
        self.stop()
        raise SystemExit(f"{self.name}: no answer within {limit_s:g} s:\n{said}")

    async def answers(self) -> bool:
        try:
            return (await streams.ask(self.address, "GET", "/v1/models", key=self.key, limit_s=5)).status == 200
        except (OSError, asyncio.TimeoutError):
            return False

    def told_url(self) -> str:
        for line in self.log_tail(1 << 16).splitlines():
            if line.startswith("listening on http://"):
                return line.removeprefix("listening on ").strip()
        return ""

    def log_tail(self, most: int = 3000) -> str:
        if self.log is None:
            return ""
        size = os.fstat(self.log.fileno()).st_size
        return os.pread(self.log.fileno(), most, max(0, size - most)).decode(errors="replace")

    def memory_bytes(self) -> int:
        """Resident, of the process that was started and all below it."""
        if self.process is None:
            return 0
        total = 0
        for pid in below(self.process.pid):
            try:
                with open(f"/proc/{pid}/statm", encoding="ascii") as file:
                    total += int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            except OSError:
                continue
        return total

    def stop(self) -> None:
        try:
            self.end()
        finally:
            if self.log is not None:
                self.log.close()
                self.log = None

    def end(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        for sign, wait_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 10)):
            os.killpg(self.process.pid, sign)
            try:
                self.process.wait(wait_s)
                return
            except subprocess.TimeoutExpired:
                print(f"{self.name}: goes on after {sign.name}", file=sys.stderr)


def below(pid: int) -> list[int]:
    """A process and its descendants."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = [int(each) for each in file.read().split()]
    except OSError:
        children = []
    return [pid] + [each for child in children for each in below(child)]
