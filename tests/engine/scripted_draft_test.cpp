// Speculation with drafts that a test decides on: right, wrong, nearly right, and at random. The
// text is that of plain decoding, and so is all that the branch is to the bit.
#include <gtest/gtest.h>

#include <cstddef>

#include "engine/branches/internals.h"
#include "step/stepper.h"
#include "support/scripted_drafter.h"

namespace dendrite {
namespace {

using test::KnownTexts;
using test::scripted;
using test::ScriptedDraft;
using test::ScriptedLane;
using test::Tokens;

constexpr std::int64_t kVocab = 272;  // of each model, or fewer

Tokens prompt() {
  return test::Random(3).tokens(20, kVocab);
}

DecodeParams drawn(std::int64_t max_tokens) {
  return {.max_tokens = max_tokens, .temperature = 1, .ignore_eos = true};
}

Token other_than(Token right, std::int64_t by = 1) {
  return static_cast<Token>((right + by) % kVocab);
}

/// Of a model with recurrent layers, a tree of drafts gives what its tokens give one by one, too.
class ScriptedDraftTest : public ::testing::TestWithParam<const char*> {
 protected:
  /// A model and behind a blank a device.
  static std::string model() {
    const std::string param = GetParam();
    return param.substr(0, param.find(' '));
  }
  static bool recurs() { return model() != "qwen3"; }
  static Engine load(EngineOptions options = {}) {
    const std::string device = std::string(GetParam()).substr(model().size() + 1);
    const bool on_cuda = device == "sampling" && test::on_cuda();
    options.prefix_index = false;
    return test::load(model(), std::move(options), on_cuda ? "cuda" : device);
  }

  struct Result {
    std::vector<Generation> outs;
    std::vector<Tokens> texts;
    std::vector<double> logprobs;
    std::vector<std::vector<float>> kv;
    Stats stats;
    std::int64_t steps = 0;  // of decoding
  };

  static void expect_same(const Result& got, const Result& expected) {
    test::expect_same(got.outs, expected.outs);
    EXPECT_EQ(got.texts, expected.texts);
    EXPECT_EQ(got.logprobs, expected.logprobs);
    ASSERT_EQ(got.kv.size(), expected.kv.size());
    for (std::size_t i = 0; i < got.kv.size(); ++i) {
      EXPECT_TRUE(test::same_bits(got.kv[i], expected.kv[i])) << "branch " << i;
    }
    EXPECT_EQ(got.stats.tokens_computed, expected.stats.tokens_computed);
    EXPECT_EQ(got.stats.tokens_generated, expected.stats.tokens_generated);
  }

  /// Forks that are ready to draw. No two begin with the same token: those that say the same share
  /// their drafts.
  static std::vector<Branch> begin(Session& session, Branch& root, int count) {
    std::vector<Branch> branches = root.fork(count);
    if (count == 1) return branches;
    for (int i = 0; i < count; ++i) branches[static_cast<std::size_t>(i)].append({{Token{i}}});
    session.distributions(branches);
    return branches;
  }

  /// Branches of a session of its own, in several calls.
  Result decode(const DecodeParams& params, int count = 3, int calls = 2) {
    Session session(engine_, {.seed = 7});
    Branch root = session.prefill(std::span<const Token>(prompt()));
    std::vector<Branch> branches = begin(session, root, count);
    Result result;
    const std::int64_t before = session.stats().steps;
    for (int i = 0; i < calls; ++i) {
      for (Generation& out : session.decode(branches, params)) {
        result.outs.push_back(std::move(out));
      }
    }
    result.stats = session.stats();
    result.steps = result.stats.steps - before;
    for (Branch& branch : branches) {
      known_.add(branch);
      result.texts.push_back(branch.tokens());
      result.logprobs.push_back(branch.logprob());
      result.kv.push_back(test::kv_of(branch));
    }
    return result;
  }

  /// From here on drafts are right: so many tokens each.
  void draft_what_comes(std::size_t length) {
    test::draft_by(engine_, [this, length](const ScriptedLane& lane, ScriptedDraft& draft) {
      draft.add_chain(-1, known_.after(lane, length));
    });
  }

  /// Any tree: the right path up to some place, with others beside and below it.
  void draft_at_random(std::uint32_t seed) {
    auto random = std::make_shared<test::Random>(seed);
    test::draft_by(engine_, [this, random](const ScriptedLane& lane, ScriptedDraft& draft) {
      std::int32_t at = -1;
      for (const Token right : known_.after(lane, static_cast<std::size_t>(random->below(8)))) {
        std::int64_t by = 1;  // each child another token
        const auto add_wrong = [&] {
          for (std::int64_t i = random->below(3); i > 0; --i) {
            const std::int32_t wrong = draft.add(at, other_than(right, by++));
            draft.add_chain(wrong, random->tokens(random->below(3), kVocab));
          }
        };
        add_wrong();
        const std::int32_t next = random->one_in(8) ? ScriptedDraft::kFull : draft.add(at, right);
        add_wrong();
        at = next;
      }
    });
  }

  Engine engine_ = load();
  KnownTexts known_;
};

INSTANTIATE_TEST_SUITE_P(Devices, ScriptedDraftTest,
                         ::testing::Values("qwen3 ", "qwen3 sampling", "qwen3_5 ",
                                           "qwen3_5 sampling", "qwen3_5_heads sampling", "lfm2 ",
                                           "nemotron_h ", "kimi_linear "));

TEST_P(ScriptedDraftTest, RightOnesGiveAStepOneTokenMoreThanTheyHave) {
  constexpr std::int64_t kTokens = 60;
  const Result plain = decode(drawn(kTokens), 3, 1);
  EXPECT_EQ(plain.steps, kTokens - 1);  // what they begin with has the first
  for (const std::int64_t length : {1, 2, 5, 16}) {
    draft_what_comes(static_cast<std::size_t>(length));
    const Result result = decode(scripted(drawn(kTokens)), 3, 1);
    expect_same(result, plain);
    const std::int64_t steps = (kTokens - 1 + length) / (length + 1);
    EXPECT_EQ(result.steps, steps) << length;
    EXPECT_EQ(result.stats.tokens_accepted, 3 * (kTokens - 1 - steps)) << length;
    EXPECT_EQ(result.stats.speculation.tokens_wasted, 0) << length;
  }
}

TEST_P(ScriptedDraftTest, WrongOnesTakeAsManyStepsAsNone) {
  const Result plain = decode(drawn(40));
  test::draft_by(engine_, [&](const ScriptedLane& lane, ScriptedDraft& draft) {
    const std::span<const Token> right = known_.after(lane, 6);
    if (right.empty()) return;
    // All that follows would be right, had the first come.
    draft.add_chain(draft.add(-1, other_than(right[0])), right.subspan(1));
    draft.add_chain(draft.add(-1, other_than(right[0], 2)), right);
  });
  const Result wrong = decode(scripted(drawn(40)));
  expect_same(wrong, plain);
  EXPECT_EQ(wrong.steps, plain.steps);
  EXPECT_GT(wrong.stats.tokens_drafted, 10 * plain.steps);
  EXPECT_EQ(wrong.stats.tokens_accepted, 0);
}

/// What the model might as well have said: the texts of other branches, that part somewhere.
TEST_P(ScriptedDraftTest, PlausibleOnesEndWhereTheyAreWrong) {
  const Result plain = decode(drawn(40));
  for (std::size_t parts = 0; parts < 4; ++parts) {
    test::draft_by(engine_, [&](const ScriptedLane& lane, ScriptedDraft& draft) {
      const std::span<const Token> right = known_.after(lane, 6);
      if (right.size() < 6) return;
      const std::int32_t at = draft.add_chain(-1, right.first(parts));
      for (const Tokens& text : plain.texts) {
        const std::span other = std::span(text).subspan(lane.text.size() + parts).first(1);
        const bool is_there = std::ranges::any_of(draft.nodes, [&](const DraftNode& node) {
          return node.parent == at && node.token == other[0];
        });
        if (other[0] != right[parts] && !is_there) draft.add(at, other[0]);
      }
    });
    const Result result = decode(scripted(drawn(40)));
    expect_same(result, plain);
    EXPECT_EQ(result.stats.tokens_accepted > 0, parts > 0);
    EXPECT_GT(result.stats.speculation.tokens_wasted, 0);
    EXPECT_EQ(result.stats.speculation.accept_depth_by_position[parts], 0);
  }
}

TEST_P(ScriptedDraftTest, AnyTreeLeavesTextsAndKvAsTheyAre) {
  const Result plain = decode(drawn(40));
  std::int64_t siblings = 0;
  for (int seed = 0; seed < test::scaled(8); ++seed) {
    draft_at_random(static_cast<std::uint32_t>(seed));
    const Result result = decode(scripted(drawn(40), 1 + 3 * seed));
    expect_same(result, plain);
    siblings += result.stats.speculation.siblings_taken;
  }
  EXPECT_GT(siblings, 0);
}

/// One pass over a tree gives the rows of one pass over each path, and of one prompt.
TEST_P(ScriptedDraftTest, RowsAreThoseOfAReplay) {
  decode(drawn(40));
  draft_at_random(1);
  const Engine other = load();
  Session session(engine_, {.seed = 7});
  Branch root = session.prefill(std::span<const Token>(prompt()));
  std::vector<Branch> branches = begin(session, root, 3);
  session.decode(branches, scripted(drawn(30)));
  EXPECT_GT(session.stats().tokens_accepted, 20);
  for (Branch& branch : branches) {
    Session replaying(other, {.seed = 7});
    Branch replayed =
        replaying.prefill(std::span<const Token>(branch.tokens()), {.stream = branch.stream()});
    const std::int64_t end = branch.length() - 1;
    EXPECT_TRUE(test::same_bits(test::kv_of(branch, end), test::kv_of(replayed, end)));
    EXPECT_EQ(session.decode(branch, drawn(3)).ids, replaying.decode(replayed, drawn(3)).ids);
  }
}

TEST_P(ScriptedDraftTest, WhatIsBesideAPathDoesNotShowInItsRows) {
  DecodeParams params = drawn(40);
  params.top_logprobs = core_of(engine_)->backend->sampler() == nullptr ? 4 : 0;
  const Result plain = decode(params);
  for (const std::int64_t by : {1, 2, 100}) {  // the siblings' tokens
    test::draft_by(engine_, [&, by](const ScriptedLane& lane, ScriptedDraft& draft) {
      std::int32_t at = -1;
      for (const Token right : known_.after(lane, 4)) {
        const std::int32_t beside = draft.add(at, other_than(right, by));
        draft.add(beside, other_than(right, 2 * by));
        at = draft.add(at, right);
      }
    });
    const Result result = decode(scripted(params, 12));
    expect_same(result, plain);  // the log-probs of rows among them
    EXPECT_GT(result.stats.speculation.accept_depth_by_position[3], 0);
    for (std::size_t i = 0; i < plain.outs.size(); ++i) {
      for (std::size_t t = 0; t < plain.outs[i].logprobs.size(); ++t) {
        const auto& got = result.outs[i].logprobs[t].top;
        const auto& expected = plain.outs[i].logprobs[t].top;
        for (std::size_t k = 0; k < expected.size(); ++k) {
          EXPECT_EQ(got[k].id, expected[k].id);
          EXPECT_EQ(got[k].logprob, expected[k].logprob);
        }
      }
    }
  }
}

/// All memory but that of the branches' own tokens is NaN before each step.
TEST_P(ScriptedDraftTest, WhatWasRefusedIsOutOfReach) {
  if (test::on_cuda()) GTEST_SKIP() << "the device may be at work while this writes";
  const Result plain = decode(drawn(40), 1);
  EngineCore& core = *core_of(engine_);
  const KvShape& shape = core.store->shape();
  const auto slot = static_cast<std::size_t>(shape.kv_heads * shape.head_dim);
  const std::vector<std::byte> nan(static_cast<std::size_t>(core.store->raw_layout().page_bytes()),
                                   std::byte{0xFF});
  const auto poison = [&](std::int32_t page, std::int64_t tokens) {
    std::vector<std::vector<float>> kept;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      for (int i = 0; i < 2; ++i) kept.emplace_back(slot * static_cast<std::size_t>(tokens));
      core.store->read(page, layer, static_cast<std::int32_t>(tokens), kept[kept.size() - 2],
                       kept.back());
    }
    core.store->write_raw(page, nan);
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const auto at = static_cast<std::size_t>(2 * layer);
      core.store->write(page, layer, static_cast<std::int32_t>(tokens), kept[at], kept[at + 1]);
    }
  };
  Branch* live = nullptr;
  auto random = std::make_shared<test::Random>(5);
  int poisoned = 0;
  test::draft_by(engine_, [&](const ScriptedLane& lane, ScriptedDraft& draft) {
    if (!core.stepper->has_begun()) {  // (else what has been begun is in no tree yet)
      const TreeLock lock(core.tree_mutex);
      for (std::int32_t page = 0; page < core.tree->pool().size(); ++page) {
        if (core.tree->pool().holders(PageId(page)) == 0) core.store->write_raw(page, nan);
      }
      Tip& tip = state_of(*live)->tip;
      const std::span<const std::int32_t> table = core.tree->table(tip);
      const std::int64_t computed = core.tree->computed(tip);
      const std::int64_t last = (computed - 1) / shape.page_tokens;
      poison(table[static_cast<std::size_t>(last)], computed - last * shape.page_tokens);
      ++poisoned;
      // Nothing of the step before is left.
      EXPECT_LE(core.tree->pool().used_pages(), core.tree->length(tip) / shape.page_tokens + 1);
    }
    std::int32_t at = -1;
    for (const Token right : known_.after(lane, static_cast<std::size_t>(random->below(6)))) {
      draft.add_chain(draft.add(at, other_than(right)), random->tokens(2, kVocab));
      at = draft.add(at, right);
    }
  });
  Session session(engine_, {.seed = 7});
  std::vector<Branch> branches;
  {
    Branch root = session.prefill(std::span<const Token>(prompt()));
    branches = begin(session, root, 1);
  }
  live = branches.data();
  std::vector<Generation> outs;
  for (int call = 0; call < 2; ++call) {
    outs.push_back(session.decode(branches, scripted(drawn(40)))[0]);
  }
  EXPECT_GT(poisoned, 10);
  test::expect_same(outs, plain.outs);
  EXPECT_TRUE(test::same_bits(test::kv_of(branches[0]), plain.kv[0]));
}

TEST_P(ScriptedDraftTest, EndsInsideAPathAreThoseOfPlainDecoding) {
  const Result free = decode(drawn(40), 3, 1);
  std::vector<DecodeParams> all;
  for (std::int64_t tokens = 1; tokens < 12; ++tokens) all.push_back(drawn(tokens));
  for (std::size_t at = 3; at < 30; at += 5) {  // each place of a path once
    DecodeParams params = drawn(40);
    params.stop_tokens = {free.outs[0].ids[at]};
    all.push_back(params);
    if (recurs()) continue;  // (it has no tokenizer)
    params = drawn(40);
    params.stop = {engine_.decode(std::span(free.outs[1].ids).subspan(at, 2))};
    if (!params.stop[0].empty()) all.push_back(params);
  }
  DecodeParams ends = drawn(40);
  ends.ignore_eos = false;
  ends.logit_bias = {{engine_.info().eos.at(0), 4.F}};
  all.push_back(ends);
  int ended = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    known_ = {};
    DecodeParams on = all[i];
    // (Where it would have gone on, so that drafts go on as well.)
    on.stop.clear();
    on.stop_tokens.clear();
    on.ignore_eos = true;
    on.max_tokens = 60;
    decode(on, 3, 2);
    const KnownTexts beyond = known_;
    const Result plain = decode(all[i]);
    known_ = beyond;
    draft_what_comes(7);
    const Result result = decode(scripted(all[i]));
    expect_same(result, plain);
    for (const Generation& out : plain.outs) ended += out.finish != Finish::kLength ? 1 : 0;
  }
  EXPECT_GT(ended, 10);
}

TEST_P(ScriptedDraftTest, PenaltiesLogProbsAndConstraintsAreThoseOfPlainDecoding) {
  std::vector<DecodeParams> all(6, drawn(40));
  all[0].repetition_penalty = 1.3;
  all[1].top_k = 5, all[1].top_p = 0.8, all[1].min_p = 0.01;
  all[2].logit_bias = {{5, 2.F}, {9, -3.F}};
  all[3].top_logprobs = 3;
  all[4].constraint = Constraint::regex("[a-f0-9 ]{90}");
  all[5].constraint = Constraint::regex("([a-f]\\{x=[0-9]\\};)*");
  if (recurs()) all.resize(4);  // (it has no tokenizer)
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    known_ = {};
    const Result plain = decode(all[i]);
    for (const std::size_t length : {1, 4, 12}) {
      draft_what_comes(length);
      expect_same(decode(scripted(all[i])), plain);
    }
    draft_at_random(static_cast<std::uint32_t>(i));
    expect_same(decode(scripted(all[i])), plain);
  }
}

TEST_P(ScriptedDraftTest, ABudgetOfOneIsOneRowMore) {
  const Result plain = decode(drawn(41), 3, 1);
  draft_what_comes(9);
  const Result one = decode(scripted(drawn(41), 1), 3, 1);
  expect_same(one, plain);
  EXPECT_EQ(one.steps, 20);
  EXPECT_EQ(one.stats.tokens_drafted, 60);
  EXPECT_EQ(one.stats.largest_batch_rows, plain.stats.largest_batch_rows);  // (the prompt's)
  const Result none = decode(scripted(drawn(41), 0), 3, 1);
  expect_same(none, plain);
  EXPECT_EQ(none.steps, plain.steps);
  EXPECT_EQ(none.stats.tokens_drafted, 0);
}

/// A draft holds what it begins at, as a fork does, and yet nobody will ask for that distribution.
TEST_P(ScriptedDraftTest, NoRowLeavesADeviceForThem) {
  if (!std::string(GetParam()).ends_with(" sampling") || test::on_cuda()) {
    GTEST_SKIP() << "counts what is read of a device that a test makes";
  }
  const auto& backend = static_cast<test::SamplingBackend&>(*core_of(engine_)->backend);
  const auto reads = [&](const DecodeParams& params) {
    const std::int64_t before = backend.downloads;
    decode(params, 3, 1);
    return backend.downloads - before;
  };
  const std::int64_t plain = reads(drawn(40));
  draft_at_random(5);
  EXPECT_EQ(reads(scripted(drawn(40))), plain);
}

TEST_P(ScriptedDraftTest, ManyRoundsOfForksHoldNothing) {
  decode(drawn(40), 24, 1);
  draft_at_random(9);
  EngineCore& core = *core_of(engine_);
  {
    Session session(engine_, {.seed = 7});
    Branch root = session.prefill(std::span<const Token>(prompt()));
    const std::int64_t pages = core.tree->pool().used_pages();
    const std::int64_t segments = core.tree->stats().segments;
    test::Random random(4);
    for (int round = 0; round < test::scaled(20); ++round) {
      std::vector<Branch> branches = begin(session, root, 24);
      session.decode(branches, scripted(drawn(random.in(2, 20))));
      for (std::size_t i = 0; i < branches.size(); ++i) {
        if (random.one_in(3)) branches[i].prune();
      }
      std::erase_if(branches, [](const Branch& branch) { return !branch.valid(); });
      std::vector<Branch> forks;
      for (Branch& branch : branches) {
        forks.push_back(branch.at(random.in(root.length(), branch.length())));
      }
      session.decode(forks, scripted(drawn(4)));
      EXPECT_TRUE(test::tree_is_sound(engine_, {std::span(&root, 1), branches, forks}));
      branches.clear();
      forks.clear();
      ASSERT_EQ(core.tree->pool().used_pages(), pages) << round;
      ASSERT_EQ(core.tree->stats().segments, segments) << round;
    }
    EXPECT_GT(session.stats().tokens_accepted, 100);
  }
  test::expect_all_pages_free(engine_);
}

}  // namespace
}  // namespace dendrite
