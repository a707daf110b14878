"""The library that dendrite opens for device cuda."""

from pathlib import Path


def library() -> str:
    """Its file."""
    return str(Path(__file__).with_name("libdendrite_cuda.so"))
