"""asyncio: compositions share steps with all else, give what waiting gives, and may end early."""

from __future__ import annotations

import asyncio
import threading

import pytest
from conftest import PROMPT

import dendrite
from dendrite import Cancel, Engine, Finish, Piece, Session, TokenEvent

LONG = "\n".join(f"{a}+{b}={a + b}" for a in range(3, 9) for b in range(4, 9))
OTHER = "\n".join(f"{a}*{b}={a * b}" for a in range(3, 9) for b in range(4, 9))


def test_all_calls_give_what_waiting_for_them_gives(session: Session) -> None:
    async def run() -> None:
        aio = session.aio
        a, b = session.prefill(LONG), session.prefill(OTHER)
        chunk = await aio.register_chunk(OTHER, prefix=PROMPT, name="products")
        assert chunk.key == session.register_chunk(OTHER, prefix=PROMPT).key
        assert chunk.name == "products"
        pieces = [Piece.span(a, 0, 40), Piece.chunk(chunk), Piece.text("4+4=")]
        edits = [(10, 20), dendrite.Edit(30, 31, [Piece.text("4")])]
        expected = [
            session.compose(pieces),
            session.edit(a, edits),
            session.compact(a, [(0, 10), (20, 60)], "4+4"),
            session.join([a, b], before_each="\n", after_all="="),
            *session.join_many([[a, b], [b, a]]),
        ]
        *one_each, both = await asyncio.gather(
            aio.compose(pieces),
            aio.edit(a, edits),
            aio.compact(a, [(0, 10), (20, 60)], "4+4"),
            aio.join([a, b], before_each="\n", after_all="="),
            aio.join_many([[a, b], [b, a]]),
        )
        for got, wanted in zip([*one_each, *both], expected, strict=True):
            assert got.branch.tokens.tolist() == wanted.branch.tokens.tolist()
            assert got.report.asdict() == wanted.report.asdict()
            assert got.branch.score(["8"])[0].logprob == wanted.branch.score(["8"])[0].logprob
        settled = await aio.settle(expected[0].branch)
        assert settled.composition.exactness == "exact"
        live = session.stats().branches_live
        answer = await aio.generate_from_chunks(pieces, max_tokens=5, ignore_eos=True)
        wanted_ids = session.generate_from_chunks(pieces, max_tokens=5, ignore_eos=True).ids
        assert answer.ids == wanted_ids
        assert session.stats().branches_live == live

    asyncio.run(run())


def test_composing_and_decoding_share_steps(engine: Engine, session: Session) -> None:
    async def run() -> None:
        a, b = session.prefill(LONG), session.prefill(OTHER)
        length = len(b)
        steps = engine.stats().steps
        generation, *composed = await asyncio.gather(
            session.aio.decode(a.at(10), max_tokens=100, ignore_eos=True),
            *(
                session.aio.compose([Piece.span(a, 0, 40), Piece.span(b, 5, length - i)])
                for i in range(8)
            ),
        )
        assert engine.stats().steps - steps <= 100 + 4
        assert len(generation.ids) == 100
        assert all(one.branch.finish is Finish.RUNNING for one in composed)
        assert all(one.report.moved > 0 for one in composed)

    asyncio.run(run())


def test_branches_may_go_once_they_are_read(session: Session) -> None:
    async def run() -> None:
        a, b = session.prefill(LONG), session.prefill(OTHER)
        expected = session.compose([Piece.span(a, 0, 40), Piece.span(b, 10, 60)]).branch
        task = asyncio.ensure_future(
            session.aio.compose([Piece.span(a, 0, 40), Piece.span(b, 10, 60)])
        )
        await asyncio.sleep(0)
        session.prune([a, b])
        assert (await task).branch.tokens.tolist() == expected.tokens.tolist()

    asyncio.run(run())


def test_cancelled_compositions_leave_nothing(small: Engine) -> None:
    entered, gate = threading.Event(), threading.Event()

    def hold_up(event: TokenEvent) -> None:  # in the thread that computes for all
        entered.set()
        gate.wait(60)

    async def run() -> None:
        with small.session() as session:
            a, b = session.prefill(LONG), session.prefill(OTHER)
            pages = small.stats().pages_used
            for call in (
                lambda: session.aio.compose([Piece.span(a, 3, 60), Piece.span(b, 0, 60)]),
                lambda: session.aio.join_many([[a, b], [b, a]]),
                lambda: session.aio.register_chunk(LONG + OTHER),
                lambda: session.aio.generate_from_chunks([Piece.span(b, 3, 60)], max_tokens=9),
            ):
                entered.clear()
                gate.clear()
                with a.at(10) as branch:
                    decode = asyncio.ensure_future(
                        session.aio.decode(branch, max_tokens=1, on_token=hold_up)
                    )
                    while not entered.is_set():
                        await asyncio.sleep(0.001)
                    task = asyncio.ensure_future(call())
                    await asyncio.sleep(0)  # it is submitted
                    task.cancel()
                    await asyncio.sleep(0)
                    gate.set()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    await decode
                assert session.stats().branches_live == 2
                assert small.stats().pages_used == pages
            cancel = Cancel()
            cancel.cancel()
            composed = await session.aio.edit(a, [(4, 9)], cancel=cancel)
            assert composed.branch.finish is Finish.CANCELLED
            assert len(composed.branch) == len(a) - 5

    asyncio.run(run())


def test_what_makes_several_calls(session: Session) -> None:
    other = session.prefill(OTHER)
    root = session.prefill(LONG)
    siblings = [root.fork().append(text) for text in (OTHER, LONG)]

    async def run() -> None:
        aio = session.aio
        pieces = [Piece.text(LONG), Piece.span(other, 0, 90)]
        made = await aio.compose(pieces, target_kl=10.0)
        made_in_thread = [
            made,
            await aio.edit(other, [(10, 20)], target_kl=10.0),
            await aio.compact(other, [(0, 10), (20, 150)], "4+4", target_kl=10.0),
            await aio.join(siblings, after_all="9+9", target_kl=10.0),
        ]
        expected = [
            session.compose(pieces, target_kl=10.0),
            session.edit(other, [(10, 20)], target_kl=10.0),
            session.compact(other, [(0, 10), (20, 150)], "4+4", target_kl=10.0),
            session.join(siblings, after_all="9+9", target_kl=10.0),
        ]
        for own, sync in zip(made_in_thread, expected, strict=True):
            assert (own.branch.tokens == sync.branch.tokens).all()
            assert own.report.estimate is not None and sync.report.estimate is not None
            assert own.report.estimate.asdict() == sync.report.estimate.asdict()
        audit = await aio.audit(made.branch)
        assert audit.asdict() == session.audit(expected[0].branch).asdict()

    asyncio.run(run())


def test_mistakes_come_out(session: Session) -> None:
    async def run() -> None:
        with pytest.raises(dendrite.Error, match="no tokens"):
            await session.aio.compose([])
        with pytest.raises(dendrite.Error, match="target_kl"):
            session._handle.submit_compose(
                [Piece.text("4")], dendrite._core.ComposeParams(
                    None, "composed", 1.0, None, False
                )
            )
        branch = session.prefill(PROMPT)
        branch.prune()
        with pytest.raises(dendrite.BranchEmpty):
            await session.aio.edit(branch, [(0, 1)])

    asyncio.run(run())
