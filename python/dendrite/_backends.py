"""Finds the libraries of devices that come as packages of their own."""

from __future__ import annotations

import ctypes
import importlib.metadata
import re

from dendrite._core import Error

#: What Engine takes: "cpu", "cuda", "cuda:1". The group: of a device that has such a library.
DEVICE = re.compile(r"cpu|(cuda)(?::[0-9]+)?")

#: Of packages that have such a library: the device is the entry point's name, its object a function
#: that returns the library's path.
GROUP = "dendrite.backends"


def library_for(device: str) -> str:
    """The file of the device's library (EngineOptions.backend_library); "" where none is needed.

    Raises Error naming the command to install it when the package is missing. A device that was
    asked for is never replaced by another. What names no device is the engine's to refuse.
    """
    named = DEVICE.fullmatch(device) if isinstance(device, str) else None
    if named is None or named[1] is None:
        return ""
    kind = named[1]
    found = importlib.metadata.entry_points(group=GROUP, name=kind)
    if not found:
        raise Error(
            f"device {device}: the package dendrite-{kind} is not installed; expected one of the "
            f"same sources (pip install packaging/{kind}, in their folder), or device cpu"
        )
    _open_cublas()
    return str(next(iter(found)).load()())


def _open_cublas() -> None:
    """Opens the cuBLASLt of the package nvidia-cublas, so that the device's library finds it.

    Its folder is in no search path, and is not always beside ours. Without the package (a CUDA
    toolkit in the system will do) the loader looks for it, and names it where it is missing.
    """
    try:
        files = importlib.metadata.files("nvidia-cublas") or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name.startswith("libcublasLt.so."):
            try:
                ctypes.CDLL(str(file.locate()))
            except OSError as error:
                text = f"device cuda: {error}; expected it of the package nvidia-cublas"
                raise Error(text) from None
