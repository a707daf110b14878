"""dendrite.ray.Pool on the unmodified Ray: two workers give what one engine gives, whatever moves
and whoever dies."""

from __future__ import annotations

import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dendrite

ray = pytest.importorskip("ray")

from dendrite.ray import Pool, WorkerLost  # noqa: E402
from dendrite.ray import part as parts  # noqa: E402

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # for the functions of this file

MODEL = Path(__file__).resolve().parents[3] / "models" / "dendrite-24"
ENGINE = {"dtype": "f32", "threads": 1, "kv_tokens": 1 << 14}
PUZZLES = ["4 5 6 10", "1 2 3 4", "3 3 8 8", "1 5 5 5", "2 7 8 9"]
STEP = {"max_tokens": 10, "stop": ["\n"], "temperature": 2.0}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def pool(cluster):
    with Pool(MODEL, workers=2, engine=ENGINE, max_restarts=10) as pool:
        yield pool


def forget(session):
    """As where its worker died: the next call makes it again."""
    session._parts[0]._home = None


@pytest.fixture(scope="module")
def engine():
    with dendrite.Engine(MODEL, **ENGINE) as engine:
        yield engine


@pytest.fixture(scope="module")
def lone(cluster, tmp_path_factory):
    """A pool beside the other, of one worker that reserves no core and has a spool."""
    spool = tmp_path_factory.mktemp("spool")
    with Pool(MODEL, num_cpus=0, engine=ENGINE, spool=spool, max_restarts=20) as pool:
        yield pool


def keep(session, every, spools=True):
    """As a pool with this checkpoint would, with its spool or without."""
    spool = session._pool._keeping.spool if spools else None
    session._parts[0]._keeping = parts.Keeping(every, spool)


def kill(pool, worker):
    (pid,) = (stats["pid"] for stats in pool.stats() if stats["worker"] == worker)
    os.kill(pid, signal.SIGKILL)


def search(session, puzzle, *, between=lambda place: None):
    """Thoughts and, of the likeliest, more thoughts: in a session of an engine or of a pool. All
    tokens, log-probs and scores of it."""
    root = session.prefill(f"S 24: {puzzle}\n")
    kids = root.fork(3)
    session.decode(kids, **STEP)
    between(0)
    best = max(kids, key=lambda branch: branch.logprob)
    more = [*best.fork(2), best.at(len(best) - 2)]
    between(1)
    out = session.decode(more, top_logprobs=1, **STEP)
    last = more[0].append("4+4=8")
    between(2)
    (scores,) = session.score([last], ["\n", " left"], top_logprobs=2)
    session.decode(last, **STEP)
    return (
        [branch.tokens.tolist() for branch in kids + more],
        [(g.text, str(g.finish), [chosen.logprob for chosen in g.logprobs]) for g in out],
        [(score.logprob, list(score.tokens), score.greedy) for score in scores],
        [[[each.id for each in place] for place in score.top] for score in scores],
    )


@pytest.fixture(scope="module")
def expected(engine):
    """What one engine finds in 50 searches."""
    found = []
    for seed in range(50):
        with engine.session(seed=seed) as session:
            found.append(search(session, PUZZLES[seed % 5]))
    assert len({str(one) for one in found}) > 40
    return found


def test_50_searches_in_2_workers_equal_one_engines_also_when_one_dies(pool, expected, tmp_path):
    pids = tmp_path / "pids"
    pids.mkdir()

    def searched(session, item):
        seed, puzzle = item
        (pids / str(os.getpid())).touch()
        if seed == 20 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return search(session, puzzle)

    items = [(seed, PUZZLES[seed % 5]) for seed in range(50)]
    assert pool.run(searched, items) == expected
    assert len(list(pids.iterdir())) == 3  # two, and who came after the one that died


def test_50_sessions_equal_one_engines_also_with_moves_and_kills(pool, expected):
    def searched(seed):
        with pool.session(seed=seed, prompt=PUZZLES[seed % 5]) as session:

            def between(place):
                (worker,) = session.workers
                if seed % 6 == place:
                    session.move(1 - worker, kv=seed % 4 < 2)
                    assert session.workers == [1 - worker]
                if seed in (20, 42) and place == seed % 3:
                    kill(pool, session.workers[0])

            return search(session, PUZZLES[seed % 5], between=between)

    with ThreadPoolExecutor(4) as threads:  # several sessions lose the same worker
        assert list(threads.map(searched, range(50))) == expected
    assert [stats["sessions"] for stats in pool.stats()] == [0, 0]
    assert [stats["queue"] for stats in pool.stats()] == [0, 0]


@pytest.mark.parametrize(("every", "place"), [(None, 2), (2, 1)])
def test_calls_since_the_last_snapshot_are_replayed(lone, expected, every, place):
    with lone.session(seed=2) as session:
        keep(session, every)
        got = search(session, PUZZLES[2], between=lambda at: kill(lone, 0) if at == place else None)
        assert got == expected[2]


def test_a_replay_that_differs_from_what_was_delivered_is_an_error(lone):
    with lone.session(seed=1) as session:
        keep(session, None)
        branch = session.prefill("S 24: 4 5 6 10\n")
        session.decode(branch, **STEP)
        call, reply = session._parts[0]._journal[1]
        reply.value[0].ids[0] += 1
        forget(session)
        with pytest.raises(dendrite.Error, match="replay of decode gave .*; expected what was"):
            session.decode(branch, **STEP)


def test_a_snapshot_that_is_lost_with_its_machine_comes_from_the_spool(lone, tmp_path, monkeypatch):
    class Lost:
        """A worker whose arguments cannot be fetched."""

        def __init__(self, actor):
            self.restore = self
            self._actor = actor

        def remote(self, key, birth, snapshot, journal):
            if isinstance(snapshot, ray.ObjectRef):
                raise ray.exceptions.ObjectLostError("0" * 56, None, "")
            return self._actor.restore.remote(key, birth, snapshot, journal)

    restore = parts.Part._restore
    monkeypatch.setattr(
        parts.Part, "_restore", lambda self, actor, *rest: restore(self, Lost(actor), *rest)
    )
    with lone.session(seed=1) as session:
        branch = session.prefill("S 24: 4 5 6 10\n")
        session.decode(branch, **STEP)
        tokens = branch.tokens.tolist()
        forget(session)
        assert branch.tokens.tolist() == tokens
        keep(session, 1, spools=False)
        forget(session)
        with pytest.raises(WorkerLost, match=r"expected a folder .*: Pool\(spool="):
            len(branch)


def test_a_move_whose_snapshot_is_lost_on_its_way_goes_by_the_last_one(pool, expected, monkeypatch):
    restore = parts.Part._restore

    def lossy(self, actor, snapshot, journal):
        if snapshot is not self._snapshot:
            raise ray.exceptions.ObjectLostError("0" * 56, None, "")
        restore(self, actor, snapshot, journal)

    monkeypatch.setattr(parts.Part, "_restore", lossy)
    with pool.session(seed=5) as session:
        got = search(session, PUZZLES[0], between=lambda at: session.move(1 - session.workers[0]))
        assert got == expected[5]


def test_the_spool_keeps_two_snapshots_of_a_session_that_is_open(lone):
    folder = lone._keeping.spool
    left = set(folder.iterdir())
    with lone.session(seed=1) as session:
        branch = session.prefill("S 24: 4 5 6 10\n")
        for _ in range(4):
            session.decode(branch, **STEP)
        assert len(set(folder.iterdir()) - left) == 2
    assert set(folder.iterdir()) == left


def test_a_call_with_functions_is_lost_with_its_worker_and_leaves_the_session_as_it_was(pool):
    def enough(index, generation):
        os.kill(os.getpid(), signal.SIGKILL)

    tokens = []
    for dies in (False, True):
        with pool.session(seed=3) as session:
            kids = session.prefill("S 24: 4 5 6 10\n").fork(2)
            session.decode(kids, **STEP)
            if dies:
                with pytest.raises(WorkerLost, match="a call with Python functions is not repeat"):
                    session.decode(kids, enough=enough, **STEP)
            session.decode(kids, **STEP)
            tokens.append([kid.tokens.tolist() for kid in kids])
    assert tokens[0] == tokens[1]


def test_constraints_move_with_their_branches_and_survive_their_worker(pool, lone, engine):
    held = dendrite.Regex("[a-z]{8}-[0-9]{8}")

    def grow(session, between):
        root = session.prefill("S 24: 4 5 6 10\n").constrain(held)
        session.decode(root, max_tokens=5, temperature=2.0)
        kids = root.fork(2)
        between(session)
        assert kids[0].constraint == held and not kids[0].is_accepted
        session.decode(kids, max_tokens=6, temperature=2.0)
        free = root.constrain(None)
        between(session)
        assert free.constraint is None
        session.decode(kids, temperature=2.0)
        loose = session.decode(free, constraint=dendrite.Choice(["ab", "cd"]), temperature=2.0)
        return [kid.text for kid in kids], loose.text

    with engine.session(seed=1) as session:
        wanted = grow(session, lambda session: None)
    assert all(re.fullmatch(held.text, text) for text in wanted[0])
    with pool.session(seed=1) as session:
        assert grow(session, lambda session: session.move(1 - session.workers[0])) == wanted
        with pytest.raises(dendrite.ConstraintError, match="unclosed group"):
            session.prefill("S 24: 4 5 6 10\n").constrain(dendrite.Regex("("))
    with lone.session(seed=1) as session:
        keep(session, None)
        assert grow(session, forget) == wanted, "by its journal"


def test_a_strategy_runs_in_the_worker_and_its_branches_go_on(pool, engine):
    from dendrite.search import BestOfN

    strategy = BestOfN(n=3, sampling=dendrite.DecodeParams(**STEP))

    def grow(session):
        result = session.run_tree(strategy, session.prefill("S 24: 4 5 6 10\n"))
        branches = [result.branch, *(other.branch for other in result.others)]
        session.decode(branches, **STEP)
        return result.rows(), [branch.tokens.tolist() for branch in branches]

    with engine.session(seed=4) as session:
        expected = grow(session)
    with pool.session(seed=4) as session:
        assert grow(session) == expected


def test_functions_run_in_the_worker_and_who_was_not_enough_is_gone(pool):
    with pool.session(seed=3) as session:
        kids = session.prefill("S 24: 4 5 6 10\n").fork(4)
        out = session.decode(kids, enough=lambda index, generation: True, **STEP)
        gone = [g.finish is dendrite.Finish.ABANDONED for g in out]
        assert any(gone) and not all(gone)
        assert [not kid for kid in kids] == gone


def test_branches_scattered_over_workers_draw_what_they_would_in_one(pool, engine):
    def grow(session, scatter):
        root = session.prefill("S 24: 4 5 6 10\n")
        kids = root.fork(6)
        scatter(kids)
        session.decode(kids, **STEP)
        more = [kid.fork() for kid in kids]
        session.decode(more, **STEP)
        return [branch.tokens.tolist() for branch in kids + more]

    with engine.session(seed=9) as session:
        expected = grow(session, lambda kids: None)
    for dies in (False, True):
        with pool.session(seed=9) as session:

            def scatter(kids, session=session, dies=dies):
                live = sum(stats["branches_live"] for stats in pool.stats())
                session.scatter(kids, workers=[0, 1])
                assert sum(stats["branches_live"] for stats in pool.stats()) == live
                assert [kid.worker for kid in kids] == [0] * 3 + [1] * 3
                if dies:
                    kill(pool, 1)

            assert grow(session, scatter) == expected
            assert sorted(session.workers) == [0, 1]


def test_a_session_goes_where_its_prompt_is_known(pool):
    prompt = "S 24: 9 9 9 9\n" * 4
    with pool.session(seed=1, prompt=prompt) as first:
        first.prefill(prompt)
        (worker,) = first.workers
        with pool.session(seed=2, prompt=prompt + "1") as second:
            assert second.workers == [worker]
        first.move(1 - worker)
        with pool.session(seed=2, prompt=prompt + "1") as third:
            third.prefill(prompt + "1")
            assert third.workers[0] in (0, 1)
        # Ten that have not begun: no more than four ahead of the other worker.
        waiting = [pool.session(seed=n, prompt=prompt) for n in range(10)]
        there = [session.workers[0] for session in waiting]
        assert abs(there.count(0) - there.count(1)) <= 4
        for session in waiting:
            session.close()


def test_a_dropped_handle_frees_its_branch_with_the_next_call(pool):
    with pool.session(seed=1) as session:
        root = session.prefill("S 24: 4 5 6 10\n")
        (worker,) = session.workers
        live = [stats["branches_live"] for stats in pool.stats()][worker]
        kids = root.fork(5)
        assert [stats["branches_live"] for stats in pool.stats()][worker] == live + 5
        del kids
        root.fork().prune()
        assert [stats["branches_live"] for stats in pool.stats()][worker] == live


def test_errors_of_calls_come_out_as_they_would_here(pool):
    with pool.session(seed=1) as session:
        branch = session.prefill("S 24: 4 5 6 10\n")
        with pytest.raises(dendrite.Error, match="at: length is 99; expected 1 to 16"):
            branch.at(99)
        assert len(branch) == 16
        with pool.session(seed=2) as other, pytest.raises(dendrite.Error, match="of another"):
            other.score([branch, other.prefill("S")], ["x"])
        branch.prune()
        with pytest.raises(dendrite.Error, match="the branch was pruned; expected a live one"):
            branch.fork()
    with pytest.raises(dendrite.Error, match="the session was closed; expected an open one"):
        session.prefill("S")
    with pytest.raises(dendrite.Error, match="worker: got 2; expected 0 to 1"):
        pool.session().move(2)

    def fails(session, item):
        raise ValueError(f"no {item}")

    with pytest.raises(ValueError, match="no 7"):
        pool.run(fails, [7])


def test_a_worker_that_dies_too_often_is_lost():
    alone = Pool(MODEL, num_cpus=0, engine=ENGINE, max_restarts=1)
    with alone as pool, pool.session(seed=1) as session:
        branch = session.prefill("S 24: 4 5 6 10\n")
        kill(pool, 0)
        assert len(branch) == 16
        kill(pool, 0)
        with pytest.raises(WorkerLost, match="worker 0 died 2 times; expected max_restarts=1"):
            session.decode(branch, **STEP)
        with pytest.raises(WorkerLost, match="worker 0 died 2 times"):
            pool.session()
    with pytest.raises(dendrite.Error, match="the pool was closed; expected an open one"):
        pool.run(search, ["4 5 6 10"])
