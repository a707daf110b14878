"""How well a model foretells texts, and files of models with fewer bits a weight."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from dendrite import _core, _doors
from dendrite._core import Perplexity, Quantized


class TextSample(NamedTuple):
    """A text to foretell, and what stands before it and is given."""

    text: str
    """The text."""
    prompt: str = ""
    """In front of it."""


def samples(name: str, texts: Sequence[str | TextSample]) -> list[tuple[str, str]]:
    """The texts and what stands before each."""
    expected = "a sequence of str and TextSample"
    found: list[tuple[str, str]] = []
    for text in _doors.items(name, texts, expected):
        if isinstance(text, TextSample):
            found.append((text.text, text.prompt))
        elif isinstance(text, str):
            found.append((text, ""))
        else:
            raise _doors.wrong(name, text, f"{expected} in it")
    return found


def quantize(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    format: Literal["fp8", "int8", "int4"],
    group: int = 0,
    output_quantization: Literal["", "fp8", "int8"] = "",
    calibration: Sequence[str | TextSample] = (),
    threads: int = 0,
    on_progress: Callable[[str, int, int], object] | None = None,
) -> Quantized:
    """Writes a model with fewer bits a weight, in the layout of compressed-tensors.

    The folder `out` is made whole or not at all. Embeddings and norms stay as they are. Other
    threads run meanwhile.

    model: a folder of f32, f16 or bf16 safetensors, or an id in the local Hugging Face cache.
    out: the new folder; nothing may have its name.
    format: what the matrices of layers become: fp8 (E4M3) or int8, with a scale for each row, or
        int4, with one for `group` neighbours.
    group: 128, 64 or 32; 0: the largest of these that all matrices can have.
    output_quantization: what the matrix that gives the logits becomes; "": it stays. Not where it
        is the embeddings, too.
    calibration: what the model is used for, in some 10,000 tokens: inputs that matter more are
        rounded less.
    threads: 0: one a core.
    on_progress: is told what is being done, and how much of how much is. What it raises ends all,
        and there is no folder.
    Raises Error, naming file and tensor, for what can't be read, is no number, or has few bits
    already.
    """
    return _core.quantize(
        _doors.path("model", model),
        _doors.path("out", out),
        format,
        group,
        output_quantization,
        samples("calibration", calibration),
        threads,
        on_progress,
    )


def top1_agreement(one: Perplexity, other: Perplexity) -> float:
    """The part of places in which both hold the same token for the likeliest.

    one, other: of the same texts, measured with `likeliest`. Raises Error where they are not.
    """
    for name, value in (("one", one), ("other", other)):
        if not isinstance(value, Perplexity):
            raise _doors.wrong(name, value, "a Perplexity")
    return _core.top1_agreement(one, other)
