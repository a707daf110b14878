"""python -m dendrite, and the command `dendrite`: a model at work from the command line."""

from __future__ import annotations

import sys

from dendrite._cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
