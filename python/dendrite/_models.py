"""Where the shipped models lie."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from dendrite._core import Error


def find(name: str) -> str:
    """The folder of a shipped model, such as "dendrite-24".

    Looks in $DENDRITE_MODELS, the package, the source tree that it was built from, share/dendrite
    beside the interpreter, and ./models. Raises Error that lists where it looked.
    """
    folders = list(dict.fromkeys(_folders()))
    for folder in folders:
        if (folder / name / "config.json").is_file():
            return str(folder / name)
    looked = ", ".join(str(folder) for folder in folders)
    raise Error(
        f"the shipped model {name} was not found in {looked}; expected a folder {name} in one of "
        "them, $DENDRITE_MODELS with such a folder, or the path of a model"
    )


def name_of(path: str) -> str:
    """What people call the model of a folder: the folder's name; of the Hugging Face cache, where
    that is the hash of a commit, the model's id.

    >>> name_of("/models/dendrite-24/")
    'dendrite-24'
    >>> name_of("/cache/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de2")
    'Qwen/Qwen3-0.6B'
    """
    parts = Path(path).parts
    if len(parts) >= 3 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
        return parts[-3].removeprefix("models--").replace("--", "/")
    return Path(path).name


def _folders() -> Iterator[Path]:
    named = os.environ.get("DENDRITE_MODELS")
    if named:
        yield Path(named)
    package = Path(__file__).resolve().parent
    yield package / "models"
    try:
        # (Written when the package is built; in a source tree there is none.)
        source = getattr(importlib.import_module("dendrite._build"), "SOURCE_DIR", "")
    except ImportError:
        source = ""
    if source:
        yield Path(source) / "models"
    elif (package.parents[1] / "pyproject.toml").is_file():
        yield package.parents[1] / "models"
    yield Path(sys.prefix) / "share" / "dendrite" / "models"
    yield Path("models").resolve()
