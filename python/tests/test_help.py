"""What help() says: a line for every public name, parameter and field."""

from __future__ import annotations

import ast
import inspect
import pathlib
import pydoc
import re
from collections.abc import Iterator
from typing import Any

import dendrite
from dendrite import Finish, Rule, _core, export, notebook, search

PACKAGE = pathlib.Path(dendrite.__file__).parent
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "_build.py")
PUBLIC = {*dendrite.__all__, *search.__all__}
UNTOLD = {"self", "cls", "exception", "memo", "protocol", "other", "fields", "args", "kwargs"}
"""Parameters whose names say it, of methods that Python calls, and keywords for all the rest."""
REFERENCES = re.compile(r"(?:See|see|As|as|of|or) (?:dendrite\.)?(\w+(?:\.\w+)?)")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Of the package and of its module, with the files that they are in."""
    for path in [*SOURCES, PACKAGE / "_core.pyi"]:
        name = str(path.relative_to(PACKAGE))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
                continue
            if path.name.startswith("_") and path.name != "__init__.py":
                if node.name not in PUBLIC:
                    continue
            elif path.parent.name == "ray" and path.name not in ("pool.py", "session.py"):
                continue
            yield name, node


def public_functions(node: ast.ClassDef) -> Iterator[Function]:
    """Overloads once."""
    for item in node.body:
        if not isinstance(item, Function):
            continue
        decorators = [ast.unparse(each) for each in item.decorator_list]
        if item.name.startswith("_") and item.name != "__init__":
            continue
        if any(each.endswith(("overload", "setter")) for each in decorators):
            continue
        yield item


def documentation() -> dict[str, str]:
    """The docstrings of public classes, and of methods with those of their classes."""
    found: dict[str, str] = {}
    for _, node in public_classes():
        around = ast.get_docstring(node) or ""
        found[node.name] = around
        for item in node.body:
            if isinstance(item, Function) and (text := ast.get_docstring(item)):
                found.setdefault(f"{node.name}.{item.name}", f"{text}\n{around}")
    return found


def with_references(text: str, owner: str, every: dict[str, str], depth: int = 3) -> str:
    """A docstring with those that it says to see."""
    if depth == 0:
        return text
    for name in REFERENCES.findall(text):
        for key in (name, f"{owner}.{name}", f"Session.{name}", f"Branch.{name}"):
            if key in every:
                kind = key.split(".")[0]
                text += "\n" + with_references(every[key], kind, every, depth - 1)
                break
    return text


def parameters(function: Function) -> list[str]:
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return [each.arg for each in every if each.arg not in UNTOLD and each.arg[0] != "_"]


def test_every_class_method_and_parameter_has_its_line() -> None:
    every = documentation()
    missing = []
    for file, node in public_classes():
        around = every[node.name]
        if not around and file != "_core.pyi":
            missing.append(f"{file}: {node.name}")
        for function in public_functions(node):
            name = f"{file}: {node.name}.{function.name}"
            own = ast.get_docstring(function) or ""
            if not own and function.name != "__init__":
                missing.append(name)
            if "adapters" in file and function.name != "__init__":
                continue  # their frameworks' words
            if function.name == "__init__" and node.name in MADE_ELSEWHERE:
                continue
            text = with_references(f"{own}\n{around}", node.name, every)
            missing += [
                f"{name}({parameter})"
                for parameter in parameters(function)
                if not re.search(rf"\b{parameter}\b", text)
            ]
    assert not missing, "\n".join(missing)


MADE_ELSEWHERE = {
    *("Session", "AsyncSession", "EventStream", "Subscription", "PoolSession", "PoolBranch"),
    "AsyncStream",
}
"""Classes whose objects people get, and do not make."""


def test_every_field_has_its_line() -> None:
    missing = []
    for file, node in public_classes():
        if any("TypedDict" in ast.unparse(base) for base in node.bases):
            continue
        for item, below in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(item, ast.AnnAssign):
                continue
            name = ast.unparse(item.target)
            told = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if not name.startswith("_") and not told:
                missing.append(f"{file}: {node.name}.{name}")
    assert not missing, "\n".join(missing)


def test_every_function_and_its_parameters_have_lines() -> None:
    missing = []
    for module in (search, export, notebook):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("_") or function.__module__ != module.__name__:
                continue
            text = with_references(inspect.getdoc(function) or "", "", documentation())
            missing += [
                f"{module.__name__}.{name}({parameter})"
                for parameter in inspect.signature(function).parameters
                if not re.search(rf"\b{parameter}\b", text)
            ]
    assert not missing, "\n".join(missing)


def test_help_shows_the_lines_of_fields() -> None:
    for shown, line in (
        (dendrite.DecodeParams, "min_p: float | None = None"),
        (search.TreeOfThoughts, "width: int = 5\n"),
        (search.TreeOfThoughts, "solved: Test | None = None"),  # which all strategies have
        (search.Steps, "candidates: int = 8"),
        (dendrite.Restored, "kv_restored: bool"),
        (export.Tree, "tin: NDArray[np.int32]"),
        (Finish, "STOP_INSIDE: A stop string"),
        (Rule, "PUCT: Silver et al."),
    ):
        text = pydoc.plain(pydoc.render_doc(shown))
        assert line in re.sub(r"(?m)^ \|", "", text), (shown, line)


def test_every_exported_name_says_what_it_is() -> None:
    for name in sorted(PUBLIC):
        value: Any = getattr(dendrite, name, None) or getattr(search, name)
        if isinstance(value, type) or inspect.isroutine(value):
            assert value.__doc__, name
            assert not value.__doc__.startswith(f"{name}("), name  # what dataclasses make
    assert _core.__doc__
