"""Which worker gets a session: the one that knows most of its prompt, if it is not busier."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LONGER = 4  # a queue so much longer than the shortest is not worth a known prompt


def page_hashes(tokens: Sequence[int] | NDArray[np.integer], page_tokens: int) -> list[bytes]:
    """One hash for each full page of a prompt, of all tokens up to its end."""
    ids = np.asarray(tokens, np.int32)
    hashes: list[bytes] = []
    before = b""
    for end in range(page_tokens, len(ids) + 1, page_tokens):
        page = ids[end - page_tokens : end].tobytes()
        before = hashlib.blake2b(before + page, digest_size=16).digest()
        hashes.append(before)
    return hashes


class Prefixes:
    """Pages of prompts that a worker has computed: as many as its pool holds, the least recently
    used forgotten first. It may be wrong about what is still there, which costs time alone."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._pages: OrderedDict[bytes, None] = OrderedDict()

    def add(self, hashes: Sequence[bytes]) -> None:
        """A prompt that was computed."""
        for page in reversed(hashes):  # its first page is wanted most, and forgotten last
            self._pages[page] = None
            self._pages.move_to_end(page)
        while len(self._pages) > self._capacity:
            self._pages.popitem(last=False)

    def match(self, hashes: Sequence[bytes]) -> int:
        """Pages of the longest known beginning."""
        for known, page in enumerate(hashes):
            if page not in self._pages:
                return known
        return len(hashes)

    def clear(self) -> None:
        """The worker has forgotten all."""
        self._pages.clear()


@dataclass(frozen=True)
class Load:
    """What routing asks of a worker."""

    match: int  #: pages of the prompt that it knows
    queue: int  #: calls and searches that run or wait there, and sessions that have not begun
    sessions: int  #: that live there


def choose(loads: Sequence[Load]) -> int:
    """The longest match, unless its queue is 4 longer than the shortest; among equal ones the
    shortest queue, then the fewest sessions, then the first."""
    shortest = min(load.queue for load in loads)
    fit = [i for i, load in enumerate(loads) if load.queue < shortest + _LONGER]
    return min(fit, key=lambda i: (-loads[i].match, loads[i].queue, loads[i].sessions, i))
