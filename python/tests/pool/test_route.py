"""Which worker gets a session."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from dendrite.ray.route import Load, Prefixes, choose, page_hashes  # noqa: E402


def test_pages_hash_all_tokens_up_to_their_end():
    a, b = page_hashes(range(50), 16), page_hashes([*range(20), 99, *range(21, 50)], 16)
    assert len(a) == 3  # the last page is not full
    assert a[0] == b[0] and a[1] != b[1] and a[2] != b[2]
    assert page_hashes(range(15), 16) == []


def test_the_longest_known_beginning_is_found():
    known = Prefixes(100)
    known.add(page_hashes(range(64), 16))
    assert known.match(page_hashes(range(200), 16)) == 4
    assert known.match(page_hashes([*range(40), 0, 0, *range(42, 64)], 16)) == 2
    assert known.match(page_hashes([7, *range(63)], 16)) == 0


def test_the_least_recently_used_prompts_are_forgotten_from_their_ends():
    known = Prefixes(6)
    old, new = page_hashes(range(64), 16), page_hashes(range(100, 164), 16)
    known.add(old)
    known.add(new)
    assert (known.match(old), known.match(new)) == (2, 4)
    known.add(old)
    assert (known.match(old), known.match(new)) == (4, 2)


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ([Load(0, 0, 0), Load(3, 0, 0)], 1),  # the longest match
        ([Load(0, 0, 0), Load(3, 3, 9)], 1),  # ... also where more wait
        ([Load(0, 0, 0), Load(3, 4, 0)], 0),  # ... but not four more
        ([Load(2, 1, 0), Load(2, 0, 0)], 1),  # of equal ones the shortest queue
        ([Load(2, 1, 5), Load(2, 1, 4)], 1),  # then the fewest sessions
        ([Load(0, 0, 0), Load(0, 0, 0)], 0),  # then the first
    ],
)
def test_who_is_chosen(loads, chosen):
    assert choose(loads) == chosen
