"""What decode parameters change about draws, and vectors of texts."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import PROMPT
from numpy.typing import NDArray

import dendrite
from dendrite import DecodeParams, Engine, Finish, Session


def test_penalties_and_bans(session: Session) -> None:
    root = session.prefill(PROMPT)
    plain = session.decode(root.fork(), temperature=0, max_tokens=8, ignore_eos=True).ids
    got = session.decode(
        root.fork(), temperature=0, max_tokens=8, ignore_eos=True, presence_penalty=1e4
    ).ids
    assert len(set(got)) == 8
    assert got[0] == plain[0]
    banned = session.decode(
        root.fork(), temperature=0, max_tokens=2, ignore_eos=True, bad_words=[list(plain[:2])]
    ).ids
    assert banned[0] == plain[0] and banned[1] != plain[1]
    word = session.decode(
        root.fork(), max_tokens=2, bad_words=["ab"], constraint=dendrite.Regex("ab|ac")
    )
    assert word.text == "ac"
    long = session.decode(
        root.fork(), temperature=0, max_tokens=6, min_tokens=4, stop_tokens=[plain[0]]
    )
    assert plain[0] not in long.ids[:4]
    with pytest.raises(TypeError, match="bad_words"):
        DecodeParams(bad_words="ab")
    with pytest.raises(dendrite.Error, match="presence_penalty is nan"):
        session.decode(root.fork(), presence_penalty=float("nan"))


def test_a_seed_of_the_call(engine: Engine) -> None:
    def drawn(session_seed: int, seed: int) -> list[int]:
        with engine.session(seed=session_seed) as session:
            root = session.prefill(PROMPT, stream=5)
            out = session.decode(root, temperature=20.0, max_tokens=12, ignore_eos=True, seed=seed)
            return list(out.ids)

    assert drawn(1, 9) == drawn(2, 9)
    assert drawn(1, 9) != drawn(1, 8)


def test_a_function_sees_the_logits_of_a_batch(session: Session) -> None:
    seen: list[tuple[tuple[int, ...], list[int], list[list[int]]]] = []
    kept: list[NDArray[np.float32]] = []

    def only(logits: NDArray[np.float32], indices: list[int], ids: list[list[int]]) -> None:
        assert logits.dtype == np.float32
        seen.append((logits.shape, indices, ids))
        kept.append(logits)
        for row, index in zip(logits, indices, strict=True):
            row[:] = -np.inf
            row[40 + index] = 0.0

    branches = session.prefill(PROMPT).fork(2)
    out = session.decode(branches, max_tokens=2, ignore_eos=True, on_logits=only)
    assert [list(one.ids) for one in out] == [[40, 40], [41, 41]]
    vocab = kept[0].shape[1]
    assert seen == [((2, vocab), [0, 1], [[], []]), ((2, vocab), [0, 1], [[40], [41]])]
    assert kept[0][0, 40] == 0.0  # an array of its own

    def fail(*_: object) -> None:
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        session.decode(branches, max_tokens=2, on_logits=fail)
    assert branches[0].finish == Finish.CANCELLED


def test_vectors_of_texts(engine: Engine) -> None:
    texts = [PROMPT, "S 24: 1 2", PROMPT]
    for pooling in ("last_token", "mean"):
        vectors = engine.embed(texts, pooling=pooling)  # type: ignore[arg-type]
        assert vectors.dtype == np.float32
        assert vectors.shape == (3, engine.info.dim)
        assert np.array_equal(vectors[0], vectors[2])
        assert np.allclose((vectors**2).sum(axis=1), 1, atol=1e-5)
    ids = engine.encode(PROMPT)
    assert np.array_equal(engine.embed([ids]), engine.embed([PROMPT]))
    assert engine.embed([]).shape == (0, engine.info.dim)
    with pytest.raises(ValueError, match="pooling"):
        engine.embed(texts, pooling="max")  # type: ignore[arg-type]
