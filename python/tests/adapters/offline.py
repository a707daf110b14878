"""Refuses connections to other machines: in this process, and in Python modules that it runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Tells packages to look nothing up.
SETTINGS = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

_LOCAL = {"localhost", "127.0.0.1", "::1", None}
_MAIN = (
    "import runpy, sys; from adapters import offline; offline.refuse(); del sys.argv[0]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def refuse(replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """Makes sockets connect, and names resolve, on this machine alone."""
    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **keywords: Any) -> Any:
        _check(host)
        return look_up(host, *arguments, **keywords)

    replace(socket, "getaddrinfo", getaddrinfo)
    for name in ("connect", "connect_ex"):
        replace(socket.socket, name, _checked(getattr(socket.socket, name)))


def run(module: str, *words: str, folder: Path | None = None) -> str:
    """What `python -m module words` prints, in `folder`, also to import from; offline, too."""
    paths = [*([str(folder)] if folder else []), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", _MAIN, module, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} {' '.join(words)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    def connect(self: socket.socket, address: Any) -> Any:
        if self.family != getattr(socket, "AF_UNIX", None):
            _check(address[0])
        return method(self, address)

    return connect


def _check(host: Any) -> None:
    if host not in _LOCAL:
        raise RuntimeError(f"offline: something wants to reach {host!r}")
