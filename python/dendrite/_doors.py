"""Checks of arguments that Python takes itself; those of the module check their own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any


def wrong(name: str, value: object, expected: str) -> TypeError:
    """ "seed: got a str; expected an int": what is raised for an argument of a wrong type."""
    if value is None:
        return TypeError(f"{name}: got None; expected {expected}")
    kind = type(value).__name__
    article = "an" if kind[0].lower() in "aeiou" else "a"
    return TypeError(f"{name}: got {article} {kind}; expected {expected}")


def path(name: str, value: object) -> str:
    """A path as a str."""
    if not isinstance(value, (str, os.PathLike)):
        raise wrong(name, value, "a path: a str or an os.PathLike")
    text = os.fspath(value)
    if not isinstance(text, str):
        raise wrong(name, text, "a path: a str or an os.PathLike")
    return text


def items(name: str, value: object, expected: str) -> list[Any]:
    """What is in a sequence that is no text and no mapping."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise wrong(name, value, expected)
    return list(value)


def as_json(name: str, value: object, expected: str) -> str:
    """JSON text of plain data."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:  # a type that JSON has no form for, or a cycle
        raise TypeError(f"{name}: got what is no JSON ({error}); expected {expected}") from None


def assign(target: object, fields: Mapping[str, tuple[Any, str]]) -> None:
    """Sets attributes of what checks types itself: name -> (value, the words for its type)."""
    for name, (value, expected) in fields.items():
        try:
            setattr(target, name, value)
        except TypeError:
            raise wrong(name, value, expected) from None
