"""The calls of a session: the same words as in C++, and the same tokens."""

from __future__ import annotations

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from conftest import DEVICE, PROMPT, ROOT, load

import dendrite
from dendrite import Budget, DecodeParams, Engine, Error, Finish, Node, Session


def test_forks_draw_what_replays_draw(engine: Engine, session: Session) -> None:
    branches = session.prefill(PROMPT).fork(4)
    out = session.decode(branches, max_tokens=24, temperature=1.0)
    with engine.session(seed=7) as again:
        for branch, first in zip(branches, out, strict=True):
            replay = again.prefill(PROMPT, stream=branch.stream)
            assert again.decode(replay, max_tokens=24, temperature=1.0).ids == first.ids
    assert len({tuple(generation.ids) for generation in out}) > 1


def test_one_branch_or_many(session: Session) -> None:
    root = session.prefill(PROMPT)
    one = session.decode(root.fork(), max_tokens=5)
    many = session.decode([root.fork(), root.fork()], DecodeParams(max_tokens=5))
    assert [generation.ids for generation in many] == [one.ids, one.ids]
    assert one.finish in (Finish.LENGTH, Finish.EOS)


def test_params_take_keywords_over_fields(session: Session) -> None:
    params = DecodeParams(max_tokens=3, stop=["\n"])
    assert params.replace(max_tokens=2) == DecodeParams(max_tokens=2, stop=("\n",))
    assert hash(params) == hash(DecodeParams(max_tokens=3, stop=["\n"]))
    assert pickle.loads(pickle.dumps(params)) == params
    assert len(session.decode(session.prefill(PROMPT), params, max_tokens=2).ids) == 2
    with pytest.raises(TypeError, match="max_token"):
        session.decode(session.prefill(PROMPT), max_token=2)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="stop"):
        DecodeParams(stop="\n")
    with pytest.raises(dendrite.Error, match="max_tokens is -1"):
        session.decode(session.prefill(PROMPT), max_tokens=-1)


def test_speculation_changes_time_alone(engine: Engine) -> None:
    def decode(**speculation: Any) -> tuple[list[list[int]], int, int]:
        with engine.session(seed=3) as session:
            root = session.prefill(PROMPT)
            texts = []
            for _ in range(3):  # the later ones say what the first has said
                done = session.decode(
                    root.fork(), temperature=0, max_tokens=40, slack=float("inf"), **speculation
                )
                texts.append(list(done.ids))
            stats = session.stats()
            return texts, stats.steps, stats.tokens_accepted

    plain, steps, _ = decode()
    drafted, fewer, accepted = decode(speculate="suffix", speculate_budget=8)
    assert drafted == plain
    assert fewer < steps
    assert accepted > 0
    with pytest.raises(dendrite.Error, match="expected off, .* mtp or suffix_mtp"):
        decode(speculate="magic")
    with pytest.raises(dendrite.Error, match="the engine has none"):
        decode(speculate="draft_model")


def test_counts_of_speculation_add_up(engine: Engine) -> None:
    with engine.events(["draft"]) as events, engine.session(seed=3) as session:
        root = session.prefill(PROMPT)
        for _ in range(3):
            session.decode(
                root.fork(), temperature=0, max_tokens=40, slack=float("inf"), speculate="suffix"
            )
        stats = session.stats()
        told = events.take()
    of = stats.speculation
    assert of.drafts == len(told) > 0
    assert stats.tokens_drafted == stats.tokens_accepted + of.tokens_wasted
    assert sum(of.accept_depth_by_position) == stats.tokens_accepted > 0
    assert of.accept_depth == stats.tokens_accepted / of.drafts
    assert of.fallbacks == 0
    assert sum(event["tokens"] for event in told) == stats.tokens_accepted
    assert sum(event["rows"] for event in told) == stats.tokens_drafted
    assert all(event["speculate"] == "suffix" for event in told)
    accepted = [node for event in told for node in event["drafted"] if node["accepted"]]
    assert len(accepted) == stats.tokens_accepted
    assert stats.asdict()["speculation"] == of.asdict()
    assert json.loads(json.dumps(engine.stats().asdict()))["speculation"]["drafts"] >= of.drafts


def test_a_block_drafter_changes_no_token() -> None:
    data = ROOT / "tests/data"
    model, drafter = data / "models/qwen3", data / "drafters/qwen3_full"
    with dendrite.Engine(model, threads=1, kv_tokens=16384, drafter=drafter) as engine:

        def decode(**speculation: Any) -> tuple[list[int], int]:
            with engine.session(seed=3) as session:
                done = session.decode(
                    session.prefill("ababab"), temperature=1, max_tokens=40, **speculation
                )
                return list(done.ids), session.stats().tokens_drafted

        plain, _ = decode()
        assert decode(speculate="dflash", slack=float("inf"))[0] == plain
        drafted, rows = decode(
            speculate="dflash_ddtree",
            slack=float("inf"),
            speculate_budget=12,
            speculate_tokens=6,
            speculate_top_k=4,
            speculate_temperature=1.5,
            speculate_chain_seed=True,
        )
        assert drafted == plain
        assert rows > 0
        with pytest.raises(dendrite.Error, match="speculate_top_k is 0; expected >= 1"):
            decode(speculate_top_k=0)


def test_a_model_drafts_for_another() -> None:
    with load(kv_tokens=16384, draft_model=ROOT / "models/dendrite-24") as engine:

        def decode(**speculation: Any) -> tuple[list[int], int]:
            with engine.session(seed=3) as session:
                done = session.decode(
                    session.prefill(PROMPT),
                    temperature=1,
                    max_tokens=40,
                    slack=float("inf"),
                    **speculation,
                )
                return list(done.ids), session.stats().steps

        plain, steps = decode()
        drafted, fewer = decode(speculate="draft_model")
        assert drafted == plain
        assert fewer < steps


def test_a_branch_tells_of_itself(session: Session) -> None:
    root = session.prefill(PROMPT)
    branch = root.fork()
    session.decode(branch, max_tokens=4, ignore_eos=True)
    assert branch.parent == root.id
    assert root.parent is None
    assert len(branch) == len(root) + 4
    assert branch.tokens.dtype == np.int32
    assert branch.tokens[-1] == branch.last_token
    assert branch.prompt_length == len(root)
    assert branch.finish is Finish.LENGTH
    assert session.engine.decode(branch.tokens[len(root) :], skip_special=True) == branch.text
    assert f"Branch {branch.id}" in repr(branch)
    assert branch.stats().tokens_generated == 4
    assert branch.logprob < 0
    assert len(branch.at(3)) == 3


def test_scores_are_the_same_from_text_and_ids(session: Session) -> None:
    root = session.prefill(PROMPT)
    texts = ["4+9=13", "13-9=4", "4"]
    ids = [session.engine.encode(text, add_special=False) for text in texts]
    from_text, from_ids = root.score(texts), root.score(ids)
    assert [score.tokens for score in from_text] == [score.tokens for score in from_ids]
    assert session.score([root, root.fork()], texts)[1][2].logprob == from_text[2].logprob
    greedy = session.decode(root.fork(), max_tokens=4)
    assert root.score([greedy.ids])[0].greedy
    assert not all(score.greedy for score in from_text)


def test_scores_tell_the_likeliest_tokens(session: Session) -> None:
    root = session.prefill(PROMPT)
    best = session.decode(root.fork(), max_tokens=3, temperature=0).ids
    plain, score = root.score([best])[0], root.score([best], top_logprobs=4)[0]
    assert score.tokens == plain.tokens and plain.top == []
    assert [[each.id for each in place[:1]] for place in score.top] == [[token] for token in best]
    assert [place[0].logprob for place in score.top] == score.tokens  # to the bit
    assert {len(place) for place in score.top} == {4}
    assert session.score([root], [best], top_logprobs=1)[0][0].top[0][0].id == best[0]
    assert score.asdict()["top"][0][0] == score.top[0][0].asdict()
    with pytest.raises(Error, match="top_logprobs is -1"):
        root.score([best], top_logprobs=-1)
    with pytest.raises(TypeError, match="top_logprobs: got a str"):
        root.score([best], top_logprobs="4")  # type: ignore[arg-type]


def test_tokens_have_bytes(session: Session) -> None:
    engine = session.engine
    text = "S 24: 4 9 (10-4)*8\n"
    ids = engine.encode(text, add_special=False)
    assert b"".join(engine.token_bytes(token) for token in ids.tolist()) == text.encode()
    assert engine.token_bytes(ids[0]) == b"S"  # numpy's, too
    with pytest.raises(Error, match="token id 99999"):
        engine.token_bytes(99999)
    with pytest.raises(TypeError, match="token: got a str"):
        engine.token_bytes("S")  # type: ignore[arg-type]


def test_prompts_tell_what_they_share(engine: Engine) -> None:
    with engine.session() as session:
        text = "S 24: 3 5 7 11\n"
        first = session.prefill(text)
        again = session.prefill(text + "3+5")
        shared = again.stats().prompt_shared
        assert shared == first.prompt_length
        assert again.fork().stats().prompt_shared == shared
        assert again.stats().tokens_regenerated == 0
        assert again.stats().asdict()["prompt_shared"] == shared


def test_prompts_of_another_salt_share_nothing(engine: Engine) -> None:
    with engine.session() as session:
        text = "S 24: 2 5 7 12\n"
        session.prefill(text)
        for salt in ("one", "two"):
            assert session.prefill(text, salt=salt).stats().prompt_shared == 0
            again = session.prefill(text, salt=salt)
            assert again.stats().prompt_shared == again.prompt_length
        with pytest.raises(TypeError, match="salt: got an? int"):
            session.prefill(text, salt=5)  # type: ignore[arg-type]


def test_distributions_are_views_of_the_row(session: Session) -> None:
    root = session.prefill(PROMPT)
    distribution = root.distribution()
    logits = distribution.logits
    assert logits.shape == (session.engine.info.vocab,)
    assert not logits.flags.writeable
    assert np.shares_memory(logits, root.distribution().logits)
    best = distribution.top(3)
    assert best[0].id == int(np.argmax(logits))
    assert distribution.logprob(best[0].id) == pytest.approx(best[0].logprob)
    both = session.distributions([root, root.fork()])
    assert both.shape == (2, session.engine.info.vocab)
    assert np.array_equal(both[0], logits)
    del root, distribution
    assert np.isfinite(logits).all()


def test_expand_and_select(session: Session) -> None:
    root = session.prefill(PROMPT)
    children = root.expand(top=3)
    best = root.distribution().top(3)
    assert [child.last_token for child in children] == [token.id for token in best]
    assert session.expand([root], min_prob=0.5)[0][0].last_token == best[0].id
    branch = root.fork()
    assert branch.select(["zzz", session.engine.decode([best[0].id])]) == 1


def test_handles(session: Session) -> None:
    root = session.prefill(PROMPT)
    assert root
    with root.fork() as branch:
        assert branch != root
    assert not branch
    assert repr(branch) == "<Branch: empty>"
    with pytest.raises(dendrite.BranchEmpty):
        len(branch)
    twin = copy.deepcopy(root)
    assert len(twin) == len(root)
    assert twin.id != root.id
    assert copy.copy(session) is session
    assert copy.deepcopy(session.engine) is session.engine
    for kept in (root, session, session.engine, root.node()):
        with pytest.raises(TypeError, match="snapshot|Pool"):
            pickle.dumps(kept)


def test_nodes_stay_where_they_are(session: Session) -> None:
    root = session.prefill(PROMPT)
    node = root.node()
    session.decode(root, max_tokens=3)
    assert isinstance(node, Node)
    assert len(node) == node.prompt_length
    assert copy.deepcopy({node: 1}) == {node: 1}
    assert node.fork(2)[1].tokens.tolist() == node.tokens.tolist()


def test_closing_empties_handles_wherever_they_are(engine: Engine) -> None:
    with engine.session() as session:
        root = session.prefill(PROMPT)
        node = root.node()
    assert not root
    assert not node
    with pytest.raises(dendrite.EngineClosed):
        session.prefill(PROMPT)


def test_closing_an_engine_closes_all(small: Engine) -> None:
    session = small.session()
    root = session.prefill(PROMPT)
    small.close()
    assert not root
    assert session.closed
    with pytest.raises(dendrite.EngineClosed):
        small.session()
    small.close()


def test_budgets_are_a_finish(engine: Engine) -> None:
    with engine.session(budget=Budget(tokens=20)) as session:
        root = session.prefill(PROMPT)
        assert session.decode(root, max_tokens=100, ignore_eos=True).finish is Finish.BUDGET


def test_bad_prompts_raise(session: Session) -> None:
    with pytest.raises(dendrite.Error, match="empty|no tokens"):
        session.prefill([])
    with pytest.raises(dendrite.Error, match="vocabulary|id"):
        session.prefill([10**6])
    with pytest.raises(UnicodeEncodeError):
        session.prefill("\ud800")
    with pytest.raises(TypeError):
        session.prefill([1.5])  # type: ignore[list-item]
    with pytest.raises(dendrite.Error, match="/nowhere"):
        Engine("/nowhere")


def test_the_models_positions_end_what_goes_on(engine: Engine, session: Session) -> None:
    limit = engine.info.max_positions
    with pytest.raises(dendrite.Error, match=f"prefill: {limit + 1} tokens; .* at most {limit} "):
        session.prefill([5] * (limit + 1))
    branch = session.prefill([5] * (limit - 2))
    on = session.decode(branch.fork(), max_tokens=10, ignore_eos=True)  # as it says
    assert len(on.ids) == 10
    no_end = {int(eos): float("-inf") for eos in engine.info.eos}
    out = session.decode(branch, max_tokens=10, logit_bias=no_end)
    assert (len(out.ids), out.finish) == (2, Finish.LENGTH)
    with pytest.raises(dendrite.Error, match=f"append: {limit + 1} tokens; "):
        branch.append([5])
    with load(kv_tokens=4096, beyond_positions=True) as other, other.session() as beyond:
        assert len(beyond.decode(beyond.prefill([5] * (limit + 1)), max_tokens=3).ids) > 0


def test_weights_are_rounded_when_they_are_loaded(engine: Engine) -> None:
    with load(weights=False, output_quantization="int8") as told:
        assert (told.info.quantization, told.info.output_quantization) == ("", "int8")
        assert told.info.numerics_key == engine.info.numerics_key + "/output_int8"
    with load(kv_tokens=4096, quantization="int4") as rounded, rounded.session() as session:
        assert (engine.info.quantization, rounded.info.quantization) == ("", "int4")
        assert rounded.info.numerics_key == engine.info.numerics_key + "/int4"
        assert len(session.decode(session.prefill(PROMPT), max_tokens=3).ids) == 3
    with pytest.raises(dendrite.Error, match='quantization is "int3"; expected fp8, int8, int4'):
        load(quantization="int3")


def test_k_and_v_in_fp8_take_half_of_bf16s_memory(engine: Engine) -> None:
    with load(kv_tokens=4096, kv_dtype="fp8") as small, small.session() as session:
        assert small.info.kv_dtype == "fp8"
        assert small.info.numerics_key == engine.info.numerics_key + "/kv_fp8"
        assert len(session.decode(session.prefill(PROMPT), max_tokens=3).ids) == 3
    with pytest.raises(dendrite.Error, match='kv_dtype is "int8"; expected auto, bf16 or fp8'):
        load(kv_dtype="int8")


def test_devices_share_a_model(engine: Engine) -> None:
    with load(kv_tokens=4096, devices=(0, 0)) as shared, shared.session() as session:
        assert shared.info.numerics_key == engine.info.numerics_key + "/2_ranks"
        assert len(session.decode(session.prefill(PROMPT), max_tokens=3).ids) == 3
    with pytest.raises(dendrite.Error, match="devices have 1; expected indices of device cpu"):
        load(devices=[0, 1])
    with pytest.raises(TypeError, match="devices"):
        load(devices=["one"])


def test_snapshots_go_on_as_without(engine: Engine, session: Session) -> None:
    branches = session.prefill(PROMPT).fork(2)
    session.decode(branches, max_tokens=4, temperature=1.0)
    data = session.snapshot(branches, attachment="note")
    wanted = session.decode(branches, max_tokens=8, temperature=1.0)
    restored = engine.restore(data)
    assert restored.attachment == "note"
    assert restored.kv_restored
    assert restored.session.seed == 7
    again = restored.session.decode(restored.branches, max_tokens=8, temperature=1.0)
    assert [out.ids for out in again] == [out.ids for out in wanted]
    with pytest.raises(dendrite.Error):
        engine.restore(data[: len(data) // 2])


def test_snapshots_without_kv(engine: Engine, session: Session, tmp_path: object) -> None:
    import pathlib

    assert isinstance(tmp_path, pathlib.Path)
    branch = session.prefill(PROMPT)
    session.save(tmp_path / "small.dtree", [branch], kv=False)
    session.save(tmp_path / "full.dtree", [branch])
    sizes = [(tmp_path / name).stat().st_size for name in ("small.dtree", "full.dtree")]
    assert sizes[0] < sizes[1]
    restored = engine.restore(tmp_path / "small.dtree")
    assert not restored.kv_restored
    assert (
        restored.session.decode(restored.branches[0], max_tokens=6).ids
        == session.decode(branch, max_tokens=6).ids
    )


def test_stats_and_events(engine: Engine) -> None:
    with engine.events(["fork", "prune"]) as events, engine.session() as session:
        session.prefill(PROMPT).fork(3)
    kinds = [event["event"] for event in events]
    assert kinds.count("fork") == 3
    assert events.dropped == 0
    stats = engine.stats()
    assert stats.asdict()["steps"] == stats.steps > 0
    assert "dendrite_steps_total" in stats.prometheus()
    assert 0 < stats.pool_utilisation_peak <= 1 and stats.busy_seconds >= stats.step_seconds > 0
    with pytest.raises(dendrite.Error, match="expected some of"):
        engine.events(["nothing"])


def test_every_call_is_told(engine: Engine) -> None:
    before = engine.stats()
    with engine.events(["call"]) as events, engine.session() as session:
        forks = session.prefill(PROMPT).fork(2)
        session.decode(forks, max_tokens=3, ignore_eos=True)
    prefill, decode = events
    assert (prefill["call"], prefill["tokens"], prefill["finish"]) == ("prefill", 0, "running")
    assert (decode["call"], decode["branches"], decode["tokens"]) == ("decode", 2, 6)
    assert 0 < decode["first_token_ms"] <= decode["ms"]
    assert decode["tokens_per_second"] > 0
    after = engine.stats()
    assert (after.calls - before.calls, after.first_tokens - before.first_tokens) == (2, 1)


def test_the_tree_as_text(engine: Engine) -> None:
    with engine.session() as session:
        root = session.prefill(PROMPT)
        fork = root.fork()
        text = engine.tree_text()
        assert f"branch {root.id}: {len(root)} tokens" in text
        assert f"branch {fork.id}: " in text
        assert " refs " in text


def test_engines_side_by_side(engine: Engine) -> None:
    def draw(one: Session) -> tuple[int, ...]:
        drawn = one.decode(one.prefill(PROMPT), max_tokens=12, temperature=1.0)
        return tuple(int(token) for token in drawn.ids)

    limit = 64 << 20
    tools = ROOT / "models/dendrite-tools"
    with (
        load(memory_bytes=limit) as first,
        Engine(tools, device=DEVICE, threads=1, memory_bytes=limit) as second,
    ):
        for one in (first, second):
            info = one.info
            taken = info.weight_bytes + info.kv_tokens * info.kv_token_bytes
            assert limit - (1 << 20) < taken <= limit
        with engine.session(seed=1) as alone:
            ids = draw(alone)
        with first.session(seed=1) as a, second.session(seed=1) as b:
            with ThreadPoolExecutor(2) as threads:  # at once
                texts = list(threads.map(draw, (a, b)))
            assert texts[0] == ids != texts[1]
            with pytest.raises(Error, match="session"):
                b.decode(a.prefill(PROMPT), max_tokens=1)
    with pytest.raises(Error, match="memory_bytes is 1 MiB, and weights take"):
        load(memory_bytes=1 << 20)


def test_compatibility_of_rounded_weights(engine: Engine) -> None:
    told = engine.compatibility()
    assert (told.verdict, told.incompatible, told.unrounded) == ("compatible", 0, 0)
    assert 0.8 < told.score <= 1 <= told.largest < 10
    assert repr(pickle.loads(pickle.dumps(told))) == repr(told)
