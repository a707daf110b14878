"""Trees for training (dendrite.export) against what Branch.score says, over random trees."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path

import numpy as np
import pytest

import dendrite
from dendrite import export

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "S 24: 4 5 6 10\n"


@pytest.fixture(scope="module")
def engine():
    with dendrite.Engine(ROOT / "models" / "dendrite-24", dtype="f32", kv_tokens=1 << 15) as engine:
        yield engine


def random_branches(session: dendrite.Session, seed: int) -> list[dendrite.Branch]:
    """Branches that fork, rewind and grow at random; some are beginnings of others."""
    rng = random.Random(seed)
    branches = [session.prefill(PROMPT)]
    for _ in range(rng.randint(3, 12)):
        branch = rng.choice(branches)
        kind = rng.random()
        if kind < 0.5:
            branches += branch.fork(rng.randint(1, 3))
        elif kind < 0.7:
            branches.append(branch.at(rng.randint(branch.prompt_length, len(branch))))
        some = rng.sample(branches, rng.randint(1, len(branches)))
        session.decode(some, max_tokens=rng.randint(1, 9), temperature=1.5, ignore_eos=True)
    rng.shuffle(branches)
    return branches


@pytest.mark.parametrize("seed", range(12))
def test_the_mask_is_ancestry(engine, seed):
    with engine.session(seed=seed) as session:
        branches = random_branches(session, seed)
        tree = export.tree(branches)
        # Nodes are beginnings: one for each that any branch has.
        wanted = {tuple(b.tokens[:n].tolist()) for b in branches for n in range(1, len(b) + 1)}
        assert len(tree) == len(wanted)
        paths = []
        for node in range(len(tree)):
            path, at = [], node
            while at >= 0:
                path.append(at)
                at = int(tree.parent[at])
            paths.append(path[::-1])
            assert tree.positions[node] == len(path) - 1
        assert {tuple(tree.ids[path].tolist()) for path in paths} == wanted
        mask = tree.mask()
        for q, path in enumerate(paths):
            assert np.flatnonzero(mask[q]).tolist() == path  # increasing: depth-first order
        for branch, leaf in zip(branches, tree.leaves, strict=True):
            assert tree.ids[paths[leaf]].tolist() == branch.tokens.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_log_probs_are_those_of_score_to_the_bit(engine, seed):
    with engine.session(seed=seed) as session:
        branches = random_branches(session, seed)
        streams = [branch.stream for branch in branches]
        rows = export.tree(branches).rows()
        for branch, row in zip(branches, rows, strict=True):
            n = branch.prompt_length
            assert row.ids.tolist() == branch.tokens.tolist()
            assert np.isnan(row.logprob[:n]).all()
            if len(branch) > n:
                (score,) = branch.at(n).score([branch.tokens[n:]])
                assert row.logprob[n:].tolist() == score.tokens
            assert row.generated.tolist() == [False] * n + [True] * (len(branch) - n)
        assert [branch.stream for branch in branches] == streams


def test_an_export_leaves_no_trace_in_what_is_drawn_later(engine):
    drawn = []  # by streams: what will be
    for exports in (False, True):
        with engine.session(seed=3) as session:
            root = session.prefill(PROMPT)
            session.decode(root, max_tokens=4, temperature=1.0)
            if exports:
                export.tree([root])
                export.tree([root], temperature=0.5, session=session)
            drawn.append([kid.stream for kid in root.fork(4)])
    assert drawn[0] == drawn[1]


def test_log_probs_at_another_temperature_are_of_its_distribution(engine):
    with engine.session(seed=1) as session:
        branches = random_branches(session, 1)
        raw = export.tree(branches).logprob
        same = export.tree(branches, temperature=1.0 + 1e-12, session=session).logprob
        np.testing.assert_allclose(same, raw, atol=2e-5)
        tree = export.tree(branches, temperature=0.7, session=session)
        branch, row = max(zip(branches, tree.rows(), strict=True), key=lambda pair: len(pair[0]))
        last = branch.at(len(branch) - 1).distribution().logits.astype(np.float64) / 0.7
        expected = last[branch.last_token] - np.log(np.exp(last - last.max()).sum()) - last.max()
        assert row.logprob[-1] == pytest.approx(expected, abs=1e-6)
        with pytest.raises(dendrite.Error, match="expected a temperature above 0 and"):
            export.tree(branches, temperature=0.7)


def test_targets_sum_to_the_rows(engine):
    with engine.session(seed=5) as session:
        tree = export.tree(random_branches(session, 5))
        targets = tree.targets()
        f = np.random.default_rng(5).random(len(tree))
        rows = sum(f[row.nodes[1:]].sum() for row in tree.rows())
        assert (targets.weight * f[targets.target]).sum() == pytest.approx(rows)
        assert (tree.parent[targets.target] == targets.source).all()
        assert (tree.ids[targets.target] == targets.ids).all()
        assert len(np.unique(targets.source)) < len(targets.source)  # a position that branches


def test_values_of_branches_are_means_over_who_passes_through(engine):
    with engine.session(seed=6) as session:
        root = session.prefill(PROMPT)
        kids = root.fork(3)
        for kid, text in zip(kids, "123", strict=True):
            kid.append(text)  # so that no two are one path
        session.decode(kids, max_tokens=6, temperature=2.0, ignore_eos=True)
        tree = export.tree(kids, values=[1.0, 0.0, 0.5])
        assert tree.value[0] == pytest.approx(0.5)
        for leaf, value in zip(tree.leaves, [1.0, 0.0, 0.5], strict=True):
            assert tree.value[leaf] == value


def test_appended_tokens_are_not_generated_where_one_says_so(engine):
    with engine.session(seed=6) as session:
        branch = session.prefill(PROMPT)
        session.decode(branch, max_tokens=3, ignore_eos=True)
        begin = len(branch)
        branch.append("7+8=15")
        end = len(branch)
        session.decode(branch, max_tokens=3, ignore_eos=True)
        (row,) = export.tree([branch], given=[[(begin, end)]]).rows()
        n = branch.prompt_length
        assert np.flatnonzero(row.generated).tolist() == [*range(n, begin), *range(end, end + 3)]


def test_a_search_result_gives_its_branches_and_their_thoughts_values(engine):
    from dendrite import search

    with engine.session(seed=2) as session:
        sampling = dendrite.DecodeParams(max_tokens=24, stop=["\n"], temperature=1.0)
        result = session.run_tree(search.BestOfN(n=4, sampling=sampling), PROMPT)
        tree = export.tree(result)
        assert len(tree.leaves) == 1 + len(result.others)
        assert tree.value[tree.leaves[0]] == result.path[-1].value
        for leaf, other in zip(tree.leaves[1:], result.others, strict=True):
            assert tree.value[leaf] == other.value
        assert math.isnan(tree.value[0])  # the prompt was not judged


def test_a_saved_tree_is_read_by_numpy(engine, tmp_path):
    with engine.session(seed=4) as session:
        tree = export.tree(random_branches(session, 4))
    tree.save(tmp_path / "tree.npz")
    with np.load(tmp_path / "tree.npz") as arrays:
        names = [field.name for field in dataclasses.fields(tree)]
        assert sorted(arrays) == sorted(names)
        for name in names:
            np.testing.assert_array_equal(arrays[name], getattr(tree, name))


def test_errors_say_what_was_expected(engine):
    with engine.session() as session:
        with pytest.raises(dendrite.Error, match="got no branch; expected one at least"):
            export.tree([])
        one, two = session.prefill([5, 6, 7]), session.prefill([6, 5, 7])
        with pytest.raises(dendrite.Error, match="expected branches of one prompt"):
            export.tree([one, two])
        with pytest.raises(dendrite.Error, match="got 2 values; expected 1, one a branch"):
            export.tree([one], values=[1, 2])
    new = "99: 8 S\n"  # no token of which is known
    with engine.session(budget=dendrite.Budget(tokens=len(engine.encode(new)))) as session:
        branch = session.prefill(new)
        branch.append("4+5")
        with pytest.raises(dendrite.Error, match="could not be computed; expected budget"):
            export.tree([branch])


def test_a_transformers_forward_with_the_mask_agrees(engine):
    """One pass over the tree in transformers gives the log-probs that this engine has of it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        ROOT / "models" / "dendrite-24", dtype=torch.float32, attn_implementation="eager"
    )
    with engine.session(seed=7) as session:
        tree = export.tree(random_branches(session, 7))
    mask = torch.full((1, 1, len(tree), len(tree)), torch.finfo(torch.float32).min)
    mask[0, 0][torch.from_numpy(tree.mask())] = 0
    with torch.no_grad():
        logits = model(
            input_ids=torch.from_numpy(tree.ids)[None].long(),
            position_ids=torch.from_numpy(tree.positions)[None].long(),
            attention_mask=mask,
        ).logits[0]
    targets = tree.targets()
    theirs = torch.log_softmax(logits, -1)[targets.source, targets.ids].numpy()
    ours = tree.logprob[targets.target]
    known = ~np.isnan(ours)
    assert known.sum() > 20
    np.testing.assert_allclose(ours[known], theirs[known], atol=1e-3)
