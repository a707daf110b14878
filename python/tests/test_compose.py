"""Composed context: chunks, spans, edits and joins, and what is told of them."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from conftest import PROMPT, load

import dendrite
from dendrite import (
    Branch,
    Cancel,
    Chunk,
    ChunkInfo,
    Composition,
    Edit,
    Engine,
    Finish,
    Piece,
    Repair,
    Session,
)

LONG = "\n".join(f"{a}+{b}={a + b}" for a in range(3, 9) for b in range(4, 9))
OTHER = "\n".join(f"{a}*{b}={a * b}" for a in range(3, 9) for b in range(4, 9))


def ids(engine: Engine, text: str, count: int) -> list[int]:
    """The text's first so many tokens."""
    tokens = engine.encode(text, add_special=False).tolist()
    assert len(tokens) >= count
    return tokens[:count]


def same_logits(one: Branch, two: Branch) -> bool:
    return np.array_equal(one.distribution().logits, two.distribution().logits)


def test_a_composition_has_the_tokens_of_its_pieces(engine: Engine, session: Session) -> None:
    one, two = ids(engine, LONG, 60), ids(engine, OTHER, 70)
    a, b = session.prefill(one), session.prefill(two)
    pieces = [Piece.span(a, 0, 40), Piece.span(b, 10, 60), Piece.text("4+4"), Piece.tokens(one[:5])]
    branch, report = session.compose(pieces, repair=Repair(first=4, last=2))
    text = engine.encode("4+4", add_special=False).tolist()
    assert branch.tokens.tolist() == one[:40] + two[10:60] + text + one[:5]
    assert branch.prompt_length == len(branch)
    assert branch.finish is Finish.RUNNING
    assert report.exactness == "composed"
    assert (report.kept, report.moved, report.repaired) == (40, 44, 6)
    assert report.computed == len(text) + 5
    assert report.moves == 1
    assert report.estimate is None
    stats = session.stats()
    assert (stats.tokens_moved, stats.tokens_repaired, stats.compositions) == (44, 6, 1)
    # The same again costs no row, and its repairs may be the pieces' own.
    pieces[1] = pieces[1].repaired(first=4, last=2)
    again = session.compose(pieces)
    assert session.stats().tokens_computed == stats.tokens_computed
    assert same_logits(again.branch, branch)
    assert again.report.asdict() == report.asdict()
    assert a.tokens.tolist() == one


def test_without_moves_it_is_prefill(engine: Engine, session: Session) -> None:
    a, b = session.prefill(ids(engine, LONG, 50)), session.prefill(ids(engine, OTHER, 50))
    assert a.composition.exactness == "exact"
    pieces = [Piece.span(a, 5, 50), Piece.span(b, 0, 30)]
    exact = session.compose(pieces, mode="exact")
    repaired = session.compose(pieces, repair=Repair(first=1000))
    moved = session.compose(pieces)
    for composed in (exact, repaired):
        assert composed.report.exactness == "exact"
        assert composed.report.moved == 0
    plain = session.prefill(exact.branch.tokens)
    assert same_logits(exact.branch, plain)
    assert same_logits(repaired.branch, plain)
    assert not same_logits(moved.branch, plain)
    settled = session.settle(moved.branch)
    assert same_logits(settled, plain)
    assert settled.composition.exactness == "exact"


def test_branches_and_nodes_tell_what_they_are_composed_of(
    engine: Engine, session: Session
) -> None:
    a, b = session.prefill(ids(engine, LONG, 50)), session.prefill(ids(engine, OTHER, 50))
    branch = session.compose([Piece.span(a, 0, 50), Piece.span(b, 0, 50)]).branch
    fork = branch.fork().append("4+4")
    assert isinstance(fork.composition, Composition)
    assert fork.composition.moved == branch.composition.moved > 0
    assert fork.composition.computed == branch.composition.computed + len(fork) - len(branch)
    assert branch.at(50).composition.moved == 0
    assert branch.node().composition.asdict() == branch.composition.asdict()
    assert "moved=" in repr(branch.composition)
    branch.prune()
    with pytest.raises(dendrite.BranchEmpty):
        branch.composition  # noqa: B018


def test_errors_are_estimated_and_audited(engine: Engine, session: Session) -> None:
    a, b = session.prefill(ids(engine, LONG, 60)), session.prefill(ids(engine, OTHER, 100))
    pieces = [Piece.span(a, 0, 60), Piece.span(b, 0, 100), Piece.text("4+4=8\n4+5=9\n")]
    branch, report = session.compose(pieces, repair=Repair(first=2), target_kl=1000)
    assert report.estimate is not None
    assert report.estimate.kind == "step"
    assert report.asdict()["estimate"] == report.estimate.asdict()
    audit = session.audit(branch)
    assert audit.kind == "audit"
    assert audit.positions == 32
    assert audit.kl_max >= audit.kl_p95 >= 0
    assert audit.kl_max >= audit.kl_mean > 0
    assert 0 <= audit.top1 <= 1
    assert branch.composition.estimate is not None
    assert json.loads(json.dumps(branch.composition.asdict()))["estimate"]["kind"] == "audit"
    exact = session.compose(pieces, target_kl=1e-12)
    assert exact.report.exactness == "exact"
    assert "target_kl" in exact.report.note


def test_edits_share_what_is_before_and_move_what_is_behind(
    engine: Engine, session: Session
) -> None:
    text, put = ids(engine, LONG, 100), ids(engine, OTHER, 5)
    branch = session.prefill(text)
    expected = text[:20] + text[40:60] + put + text[62:]
    edits = [(20, 40), Edit(60, 62, [Piece.tokens(put)])]
    edited = session.edit(branch, edits, repair=Repair(first=16))
    assert edited.branch.tokens.tolist() == expected
    report = edited.report
    assert (report.kept, report.dropped, report.computed) == (20, 22, 5)
    assert (report.moved, report.repaired) == (4 + 18, 16 + 16 + 4)
    assert "exact" in report.note
    exact = session.edit(branch, [(20, 40), (60, 62, [Piece.tokens(put)])], mode="exact")
    assert same_logits(exact.branch, session.prefill(expected))
    compacted = session.compact(branch, [(0, 10), (60, 100)], "4+4")
    assert compacted.branch.tokens.tolist() == (
        text[:10] + engine.encode("4+4", add_special=False).tolist() + text[60:]
    )
    assert compacted.report.dropped == 50
    assert branch.tokens.tolist() == text
    with pytest.raises(dendrite.Error, match=r"span \[50, 40\)"):
        session.edit(branch, [(50, 40)])
    with pytest.raises(TypeError):
        session.edit(branch, [(1.5, 4)])  # type: ignore[list-item]


def test_siblings_are_joined_behind_what_they_have_in_common(
    engine: Engine, session: Session
) -> None:
    trunk = ids(engine, LONG, 40)
    siblings = session.prefill(trunk).fork(3)
    own = [ids(engine, OTHER[5 * i :], 30) for i in range(3)]
    for sibling, tokens in zip(siblings, own, strict=True):
        sibling.append(tokens)
    joined = session.join(siblings, repair=Repair(first=16))
    assert joined.branch.tokens.tolist() == trunk + sum(own, [])
    assert joined.report.kept == 70
    assert joined.report.moved > 0
    text = engine.encode("\n", add_special=False).tolist()
    marked = session.join(siblings[:2], before_each="\n", after_all="\n", mode="exact")
    assert marked.branch.tokens.tolist() == trunk + own[0] + text + own[1] + text
    assert marked.report.exactness == "exact"
    many = session.join_many(
        [siblings, [siblings[2], siblings[0]]], repair=Repair(first=16)
    )
    assert same_logits(many[0].branch, joined.branch)
    assert len(many[1].branch) == 100
    with pytest.raises(dendrite.Error, match="no branches"):
        session.join([])


def test_chunks_are_registered_once_and_composed(small: Engine) -> None:
    system, one, two = ids(small, PROMPT, 10), ids(small, LONG, 40), ids(small, OTHER, 50)
    with small.session() as session, small.session() as other:
        first = session.register_chunk(one, prefix=system, name="one")
        again = other.register_chunk(one, prefix=system)
        assert other.stats().tokens_computed == 0
        assert again.key == first.key
        assert again.name == "one"
        assert (len(first), first.tokens.tolist()) == (40, one)
        assert first.tokens.dtype == np.int32
        assert repr(first) == f"<Chunk {first.key[:8]}: 40 tokens, 'one'>"
        second = session.register_chunk(two, prefix=system)
        pieces = [Piece.tokens(system), Piece.chunk(first), Piece.chunk(second), Piece.text("4+4")]
        branch, report = session.compose(pieces)
        assert branch.tokens[: 10 + 40 + 50].tolist() == system + one + two
        assert (report.moved, report.repaired) == (18, 32)  # the first is a fork of its prefix
        wanted = session.decode(branch.fork(), max_tokens=6)
        told: list[int] = []
        out = session.generate_from_chunks(
            pieces, max_tokens=6, on_token=lambda event: told.append(event.token)
        )
        assert out.ids == wanted.ids == told
        # Of a text, white space at both ends does not count.
        with_text = session.register_chunk("  4+4=8\r\n4+5=9 \n")
        assert session.register_chunk("4+4=8\n4+5=9").key == with_text.key
        assert small.decode(with_text.tokens) == "4+4=8\n4+5=9"
        with pytest.raises(dendrite.Error, match="white space"):
            session.register_chunk(" \n")
        with pytest.raises(dendrite.Error, match="no tokens"):
            session.register_chunk([])
        with pytest.raises(UnicodeEncodeError):
            session.register_chunk("\ud800")


def test_handles_of_chunks(small: Engine) -> None:
    with small.session() as session:
        chunk = session.register_chunk(LONG)
        assert chunk
        assert copy.deepcopy([chunk])[0] is chunk
        assert copy.copy(chunk) is chunk
        with pytest.raises(TypeError, match="Register its text"):
            pickle.dumps(chunk)
    # Sessions end, chunks are the engine's; closing that empties them.
    with small.session() as session:
        assert len(session.compose([Piece.chunk(chunk)]).branch) == len(chunk)
        with load(kv_tokens=16384) as stranger, stranger.session() as elsewhere:
            with pytest.raises(dendrite.Error, match="another engine"):
                elsewhere.compose([Piece.chunk(chunk)])
    small.close()
    assert not chunk
    assert repr(chunk) == "<Chunk: of a closed engine>"
    with pytest.raises(dendrite.EngineClosed):
        len(chunk)


def test_chunks_are_forgotten_where_there_are_too_many() -> None:
    with load(kv_tokens=16384, chunk_tokens=64) as engine, engine.session() as session:
        for i in range(4):
            session.register_chunk(ids(engine, LONG[i:], 40))
        before = session.stats().tokens_computed
        session.register_chunk(ids(engine, LONG[3:], 40))  # the last one is there
        assert session.stats().tokens_computed == before
        session.register_chunk(ids(engine, LONG, 40))  # the first is not
        assert session.stats().tokens_computed > before


def test_what_is_wrong_raises(engine: Engine, session: Session) -> None:
    branch = session.prefill(PROMPT)
    piece = Piece.span(branch, 0, 3)
    with pytest.raises(dendrite.Error, match="of a branch of"):
        session.compose([Piece.span(branch, 3, 10**6)])
    with pytest.raises(dendrite.Error, match="expected composed or exact"):
        session.compose([piece], mode="fast")  # type: ignore[arg-type]
    with pytest.raises(dendrite.Error, match="target_kl is -1"):
        session.compose([piece], target_kl=-1)
    with pytest.raises(dendrite.Error, match="repair of -1"):
        session.compose([piece], repair=Repair(first=-1))
    with pytest.raises(dendrite.Error, match="no tokens"):
        session.compose([])
    with pytest.raises(dendrite.Error, match="no tokens"):
        session.edit(branch, [(0, len(branch))])
    with pytest.raises(TypeError, match="got a str; expected a Piece"):
        session.compose(["text"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="expected a Repair"):
        session.compose([piece], repair=4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a Chunk"):
        Piece.chunk("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a Branch"):
        Piece.span(session, 0, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected token ids"):
        Piece.tokens("text")  # type: ignore[arg-type]
    with pytest.raises(UnicodeEncodeError):
        session.compose([Piece.text("\ud800")])
    with engine.session() as other, pytest.raises(dendrite.Error, match="another session"):
        other.compose([piece])
    branch.prune()
    for call in (session.settle, session.audit):
        with pytest.raises(dendrite.BranchEmpty):
            call(branch)
    with pytest.raises(dendrite.BranchEmpty):
        session.compose([piece])


def test_a_branch_in_a_call_may_be_read_and_not_changed(engine: Engine, session: Session) -> None:
    branch = session.prefill(ids(engine, LONG, 60))

    def change(event: object) -> None:  # while it is composed and generated from
        with pytest.raises(dendrite.BranchBusy):
            branch.append("4")
        assert len(branch) == len(branch.fork()) == 60

    out = session.generate_from_chunks(
        [Piece.span(branch, 10, 60)], max_tokens=2, ignore_eos=True, on_token=change
    )
    assert len(out.ids) == 2
    branch.append("4")  # free again


def test_calls_are_cancelled_and_interrupted(small: Engine) -> None:
    cancelled = Cancel()
    cancelled.cancel()
    with small.session() as session:
        text = small.encode(LONG * 20, add_special=False)[:3000]
        composed = session.compose([Piece.tokens(text)], cancel=cancelled)
        assert composed.branch.finish is Finish.CANCELLED
        assert len(composed.branch) == len(text)
        out = session.generate_from_chunks([Piece.tokens(text)], cancel=cancelled)
        assert (out.finish, list(out.ids)) == (Finish.CANCELLED, [])
        composed.branch.prune()

        main = threading.main_thread().ident or 0
        timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            while True:
                session.compose([Piece.tokens(text)], mode="exact").branch.prune()
        timer.join()
        assert len(session.compose([Piece.text("4+4")]).branch) == 3


def test_threads_run_while_a_call_computes(small: Engine) -> None:
    with small.session() as session:
        text = small.encode(LONG * 20, add_special=False)[:3000]
        results: list[Any] = []
        threads = [
            threading.Thread(
                target=lambda i=i: results.append(session.register_chunk(text[i : 2000 + i // 2]))
            )
            for i in (0, 0, 2, 2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({chunk.key for chunk in results}) == 2
        assert all(isinstance(chunk, Chunk) for chunk in results)


def test_chunks_can_be_looked_at(small: Engine) -> None:
    with small.session() as session:
        before = small.stats()
        chunk = session.register_chunk(LONG, name="long")
        again = session.register_chunk("  " + LONG + "\r\n")
        composed = session.compose([Piece.text("4+4"), Piece.chunk(chunk), Piece.chunk(again)])
        info = next(info for info in small.chunks() if info.key == chunk.key)
        assert isinstance(info, ChunkInfo)
        assert (info.name, info.tokens, info.tokens_held) == ("long", len(chunk), len(chunk))
        assert (info.state, info.uses, info.hits) == ("warm", 2, 1)
        assert (info.reads, info.read_hits) == (2, 2)
        assert info.hit_rate == 3 / 4
        assert info.beginning == chunk.tokens[:16].tolist()
        assert LONG.startswith(info.text.strip())
        assert info.pages >= info.own_pages > 0
        assert json.loads(json.dumps(info.asdict()))["id"].startswith(chunk.key)
        stats = small.stats()
        assert stats.chunk_lookups - before.chunk_lookups == 2
        assert stats.chunk_hits - before.chunk_hits == 1
        assert stats.chunk_read_hits - before.chunk_read_hits == 2
        assert stats.tokens_moved - before.tokens_moved == composed.report.moved
        assert stats.chunk_entries == len(small.chunks())
        assert "dendrite_chunk_tokens " in stats.prometheus()


def test_a_shortage_tells_how_large_a_pool_would_do() -> None:
    with load(kv_tokens=160) as engine, engine.session() as session:
        chunk = session.register_chunk(ids(engine, LONG, 80))
        composed = session.compose([Piece.text("4+4"), Piece.chunk(chunk)])
        assert composed.branch.finish is Finish.BUDGET
        shortage = session.shortage
        assert shortage is not None
        assert shortage.pages_of_chunks == 0  # the chunk gave way, to no avail
        assert shortage.pages_of_compositions == shortage.pages_of_sources == 0
        assert shortage.kv_tokens_needed > 160
        assert f"kv_tokens >= {shortage.kv_tokens_needed}" in str(shortage)


def test_events_of_compositions(small: Engine) -> None:
    with small.events(["compose", "chunk", "pressure"]) as events, small.session() as session:
        chunk = session.register_chunk(ids(small, LONG, 60))
        composed = session.compose([Piece.text("4+4"), Piece.chunk(chunk)])
    told = events.take()
    assert [event["event"] for event in told] == ["chunk", "compose"]
    assert told[0]["tokens"] == 60
    for part in ("kept", "moved", "repaired", "computed"):
        assert told[1][part] == getattr(composed.report, part)
    assert told[1]["ms"] > 0
    assert told[1]["kl"] == 0


def test_the_worst_groups_are_repaired(engine: Engine, session: Session) -> None:
    a, b = session.prefill(ids(engine, LONG, 60)), session.prefill(ids(engine, OTHER, 100))
    pieces = [Piece.span(a, 0, 60), Piece.span(b, 0, 100), Piece.text("4+4")]
    plain = session.compose(pieces, repair=Repair(first=4))
    top = session.compose(pieces, repair=Repair(first=4, top=0.5))
    assert plain.report.moved == 96
    assert top.report.moved == 48
    pieces[1] = pieces[1].repaired(first=4, top=1)
    assert session.compose(pieces).report.exactness == "exact"
    with pytest.raises(dendrite.Error, match="top 2"):
        session.compose(pieces, repair=Repair(top=2))


def test_exact_twins_are_computed_behind(engine: Engine, session: Session) -> None:
    a, b = session.prefill(ids(engine, LONG, 60)), session.prefill(ids(engine, OTHER, 100))
    pieces = [Piece.span(a, 0, 60), Piece.span(b, 0, 100), Piece.text("4+4")]
    asyncio.run(session.aio.prefill("4+4"))  # the engine has a thread from then on
    branch = session.compose(pieces, exact_behind=True).branch
    deadline = time.monotonic() + 60
    while branch.composition.exact_behind < len(branch) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert branch.composition.exact_behind == len(branch)
    rows = session.stats().tokens_computed
    exact = session.settle(branch)
    assert session.stats().tokens_computed == rows
    assert exact.composition.exactness == "exact"
    assert session.compose(pieces).branch.composition.exact_behind == 0


def test_stats_of_moves_and_errors(small: Engine) -> None:
    before = small.stats()
    with small.session() as session:
        a = session.prefill(ids(small, LONG, 60))
        text = Piece.text("4+4=8\n4+5=9\n")
        pieces = [text, Piece.span(a, 0, 60), text]
        branch = session.compose(pieces, repair=Repair(first=2), target_kl=1000).branch
        session.audit(branch)
    stats = small.stats()
    assert stats.bytes_moved > before.bytes_moved
    assert stats.move_seconds > before.move_seconds
    assert stats.move_bandwidth > 0
    assert stats.estimate_factor == 50
    assert sum(stats.estimates.counts) == sum(before.estimates.counts) + 1
    assert sum(stats.audits.counts) == sum(before.audits.counts) + 1
    assert len(stats.audits.bounds) + 1 == len(stats.audits.counts)
    assert json.loads(json.dumps(stats.asdict()))["audits"]["sum"] == stats.audits.sum


def test_compositions_come_back_from_snapshots(engine: Engine, session: Session) -> None:
    a, b = session.prefill(ids(engine, LONG, 50)), session.prefill(ids(engine, OTHER, 50))
    branch = session.compose([Piece.span(a, 0, 50), Piece.span(b, 10, 50)]).branch
    restored = engine.restore(session.snapshot([branch]))
    assert restored.branches[0].composition.asdict() == branch.composition.asdict()
    assert same_logits(restored.branches[0], branch)
    restored.session.close()
