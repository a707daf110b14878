"""Lines of fields for help(), which shows a class's own docstring alone."""

from __future__ import annotations

import ast
import enum
import sys
import textwrap
from pathlib import Path
from typing import Any

MARK = "\n\nFields:\n"
"""Begins what is added."""


def document(module: str) -> None:
    """Adds to the classes of a module what stands below their fields, and their bases' there.

    Where there is no source (as of a zipped package), help() goes without.
    """
    home = sys.modules[module]
    try:
        source = Path(str(home.__file__)).read_text(encoding="utf-8")
    except OSError:
        return
    fields: dict[Any, list[str]] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        made = getattr(home, node.name)
        fields[made] = [
            _line(item, below.value.value)
            for item, below in zip(node.body, node.body[1:], strict=False)
            if isinstance(item, ast.AnnAssign)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ]
    for made in fields:
        lines = [line for base in made.__mro__ for line in fields.get(base, ())]
        if lines and made.__doc__:
            made.__doc__ = textwrap.dedent(_first(made.__doc__)) + MARK + "\n".join(lines)


def document_members(kind: type[enum.Enum]) -> None:
    """The same of an enumeration whose members have docstrings."""
    lines = [f"    {member.name}: {member.__doc__}" for member in kind]
    kind.__doc__ = f"{kind.__doc__}{MARK}" + "\n".join(lines)


def _first(text: str) -> str:
    """A docstring with its first line indented as the others are."""
    first, *others = text.expandtabs().rstrip().split("\n")
    indents = [len(line) - len(line.lstrip()) for line in others if line.strip()]
    return "\n".join([" " * min(indents, default=0) + first.lstrip(), *others])


def _line(item: ast.AnnAssign, text: object) -> str:
    value = f" = {ast.unparse(item.value)}" if item.value is not None else ""
    if "field(" in value:
        value = ""
    told = textwrap.indent(textwrap.fill(" ".join(str(text).split()), 84), " " * 8)
    return f"    {ast.unparse(item.target)}: {ast.unparse(item.annotation)}{value}\n{told}"
