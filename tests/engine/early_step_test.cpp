// Steps that a device begins before the tokens of the step before are read: the same tokens and the
// same tree as without, whatever becomes of the branches meanwhile.
#include <gtest/gtest.h>

#include <atomic>
#include <stop_token>
#include <thread>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::expect_same;
using test::load;
using test::load_sampling;
using test::on_cuda;
using test::Random;
using test::replay;
using test::same_bits;
using test::SamplingBackend;
using test::Tokens;

DecodeParams sampled(std::int64_t max_tokens) {
  return {.max_tokens = max_tokens, .temperature = 1.0, .ignore_eos = true};
}

/// Of a model with attention alone, and of one with recurrent layers, too.
class EarlyStep : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, EarlyStep, testing::Values("tinyllama", "qwen3_5"),
                         [](const auto& info) { return std::string(info.param); });

/// Branches of one prompt, on a device that samples.
struct Tree {
  explicit Tree(std::size_t count, EngineOptions options = {.prefix_index = false},
                Budget budget = {}, bool early = true)
      : engine(early ? load_sampling(EarlyStep::GetParam(), options)
                     : load(EarlyStep::GetParam(), options, "")),
        session(engine, {.seed = 8, .budget = budget}) {
    for (std::size_t i = 0; i < count; ++i) {
      branches.push_back(root.fork());
      branches.back().append(Tokens{static_cast<Token>(40 + i)});
    }
  }

  std::vector<Generation> decode(const DecodeParams& params) {
    return session.decode(branches, params);
  }
  std::int64_t discarded() const { return session.stats().tokens_discarded; }
  void expect_sound() {
    EXPECT_TRUE(test::tree_is_sound(engine, {std::span(&root, 1), branches, others}));
  }
  /// Each branch has the logits, K and V of its tokens computed from scratch.
  void expect_replayed() {
    const Engine fresh = load_sampling(EarlyStep::GetParam(), {.prefix_index = false});
    for (Branch& branch : branches) {
      EXPECT_TRUE(same_bits(bits_of(branch), replay(fresh, branch.tokens())));
    }
  }

  Engine engine;
  Session session;
  Branch root = session.prefill(Random(4).tokens(40, 256));
  std::vector<Branch> branches;
  std::vector<Branch> others;
};

/// On the CPU: rows of passes, so far, whose tokens were not read.
std::shared_ptr<std::int64_t> count_unread(const Engine& engine) {
  auto count = std::make_shared<std::int64_t>(0);
  auto& backend = static_cast<SamplingBackend&>(*core_of(engine)->backend);
  backend.on_pass = [count](std::int64_t unread) { *count += unread; };
  return count;
}

/// The tokens of this call without steps begun early: one token a call.
std::vector<Tokens> one_by_one(std::size_t count, std::int64_t tokens) {
  Tree tree(count);
  for (std::int64_t i = 0; i < tokens; ++i) tree.decode(sampled(1));
  EXPECT_EQ(tree.discarded(), 0);
  std::vector<Tokens> out;
  for (const Branch& branch : tree.branches) out.push_back(branch.tokens());
  return out;
}

TEST_P(EarlyStep, DrawsTheSameTokens) {
  for (const std::size_t count : {1, 2, 5, 33, 70}) {
    const std::vector<Tokens> expected = one_by_one(count, 50);
    Tree tree(count);
    std::shared_ptr<std::int64_t> unread;
    if (!on_cuda()) unread = count_unread(tree.engine);
    tree.decode(sampled(50));
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(tree.branches[i].tokens(), expected[i]) << i;
    // All but the first token, which comes with the prompt's last, are of steps begun early; none
    // of them in vain. (This device keeps 64 tokens.)
    if (unread) {
      EXPECT_EQ(*unread, static_cast<std::int64_t>(count <= 64 ? 49 * count : 0));
    }
    EXPECT_EQ(tree.discarded(), 0);
    tree.expect_sound();
    if (count < 33) tree.expect_replayed();
  }
}

/// Rows come to the host beside their draws, not instead of them.
TEST_P(EarlyStep, IsBegunWhereTheLikeliestTokensAreWanted) {
  constexpr std::size_t kCount = 5;
  DecodeParams params = sampled(50);
  params.top_logprobs = 3;
  Tree tree(kCount);
  std::shared_ptr<std::int64_t> unread;
  if (!on_cuda()) unread = count_unread(tree.engine);
  const std::vector<Generation> got = tree.decode(params);
  if (unread) {
    EXPECT_EQ(*unread, 49 * static_cast<std::int64_t>(kCount));
  }
  EXPECT_EQ(tree.discarded(), 0);
  // As where no step is begun early: one token a call.
  Tree slow(kCount);
  params.max_tokens = 1;
  for (std::size_t token = 0; token < 50; ++token) {
    const std::vector<Generation> one = slow.decode(params);
    for (std::size_t i = 0; i < kCount; ++i) {
      const ChosenToken& expected = one[i].logprobs.front();
      const ChosenToken& chosen = got[i].logprobs[token];
      EXPECT_EQ(chosen.id, expected.id);
      EXPECT_EQ(chosen.logprob, expected.logprob);
      ASSERT_EQ(chosen.top.size(), 3u);
      for (std::size_t k = 0; k < 3; ++k) {
        EXPECT_EQ(chosen.top[k].id, expected.top[k].id) << i << " " << token;
        EXPECT_EQ(chosen.top[k].logprob, expected.top[k].logprob);
      }
    }
  }
  tree.expect_sound();
}

/// Calls of several threads, with functions that each of these calls.
TEST_P(EarlyStep, IsBegunForCallsOfSeveralThreads) {
  constexpr std::size_t kCount = 6;
  const std::vector<Tokens> expected = one_by_one(kCount, 50);
  Tree tree(kCount);
  std::shared_ptr<std::int64_t> unread;
  if (!on_cuda()) unread = count_unread(tree.engine);
  std::atomic<std::int64_t> heard = 0;
  {
    std::vector<std::jthread> threads;
    for (Branch& branch : tree.branches) {
      threads.emplace_back([&] {
        DecodeParams params = sampled(50);
        params.on_token = [&](const TokenEvent&) { ++heard; };
        tree.session.decode(branch, params);
      });
    }
  }
  EXPECT_EQ(heard, 50 * kCount);
  for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(tree.branches[i].tokens(), expected[i]) << i;
  if (unread) {
    EXPECT_GT(*unread, 0);
  }
  tree.expect_sound();
  tree.expect_replayed();
}

TEST_P(EarlyStep, IsNotBegunForSoFewThatMayAllEndWithOneToken) {
  if (on_cuda()) GTEST_SKIP() << "counts the passes of a CPU";
  for (const std::size_t count : {3, 4}) {
    Tree tree(count);
    const auto unread = count_unread(tree.engine);
    DecodeParams params = sampled(20);
    params.stop_tokens = {219};
    tree.decode(params);
    EXPECT_EQ(*unread > 0, count == 4);
  }
}

TEST_P(EarlyStep, EndsWhereABranchEnds) {
  constexpr std::size_t kCount = 6;
  const std::vector<Tokens> free_run = one_by_one(kCount, 40);
  // Each branch is to end by a token that it draws somewhere, and some by none.
  DecodeParams params = sampled(40);
  for (std::size_t i = 0; i + 2 < kCount; ++i) {
    params.stop_tokens.push_back(free_run[i][45 + 7 * i]);
  }
  Tree tree(kCount);
  const std::vector<Generation> got = tree.decode(params);
  for (std::size_t i = 0; i < kCount; ++i) {
    const Tokens drawn(free_run[i].begin() + 41, free_run[i].end());
    const auto end = std::ranges::find_first_of(drawn, params.stop_tokens);
    const Tokens expected(drawn.begin(), end == drawn.end() ? end : end + 1);
    EXPECT_EQ(got[i].ids, expected) << i;
    EXPECT_EQ(got[i].finish, end == drawn.end() ? Finish::kLength : Finish::kStop) << i;
  }
  EXPECT_GT(tree.discarded(), 0);
  const Stats stats = tree.session.stats();
  std::int64_t tokens = 0;
  for (const Generation& generation : got) tokens += std::ssize(generation.ids);
  EXPECT_EQ(stats.tokens_generated, tokens);
  EXPECT_EQ(stats.tokens_redundant, 0);
  tree.expect_sound();
  tree.expect_replayed();
}

TEST_P(EarlyStep, CountsWhatASessionWithoutItCounts) {
  if (on_cuda()) GTEST_SKIP() << "compares with the CPU's own sampling";
  DecodeParams params = sampled(30);
  params.ignore_eos = false;
  params.stop_tokens = Random(7).tokens(12, 256);
  Tree early(8);
  Tree late(8, {.prefix_index = false}, {}, false);
  expect_same(early.decode(params), late.decode(params));
  const Stats a = early.session.stats();
  const Stats b = late.session.stats();
  EXPECT_GT(a.tokens_discarded, 0);
  EXPECT_EQ(b.tokens_discarded, 0);
  EXPECT_EQ(a.tokens_computed, b.tokens_computed);
  EXPECT_EQ(a.tokens_generated, b.tokens_generated);
  EXPECT_EQ(a.tokens_independent, b.tokens_independent);
  EXPECT_EQ(a.copies_on_write, b.copies_on_write);
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.pages_used, b.pages_used);
}

TEST_P(EarlyStep, ForksOnTheWayAreOfTheTokensSoFar) {
  constexpr std::size_t kCount = 5;
  const std::vector<Tokens> expected = one_by_one(kCount, 30);
  Tree tree(kCount);
  DecodeParams params = sampled(30);
  std::vector<Tokens> forked;
  params.on_token = [&](const TokenEvent& event) {
    Branch& branch = tree.branches[event.index];
    if ((branch.tokens().size() + event.index) % 9 != 0) return;
    tree.others.push_back(branch.fork());
    forked.push_back(branch.tokens());
  };
  tree.decode(params);
  ASSERT_GT(tree.others.size(), 10u);
  for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(tree.branches[i].tokens(), expected[i]) << i;
  for (std::size_t i = 0; i < forked.size(); ++i) EXPECT_EQ(tree.others[i].tokens(), forked[i]);
  EXPECT_EQ(tree.session.stats().tokens_redundant, 0);
  tree.expect_sound();
  tree.expect_replayed();
  std::swap(tree.branches, tree.others);
  tree.expect_replayed();
}

TEST_P(EarlyStep, StopsTryingWhereBranchesAreForkedAllTheTime) {
  Tree tree(2);
  DecodeParams params = sampled(30);
  params.on_token = [&](const TokenEvent& event) {
    Branch& branch = tree.branches[event.index];
    if (branch.tokens().size() % 3 == 0) tree.others.push_back(branch.fork());
  };
  tree.decode(params);
  EXPECT_EQ(tree.discarded(), 2);  // of one step
  tree.expect_sound();
}

TEST_P(EarlyStep, OtherThreadsMayForkAndDropMeanwhile) {
  const std::vector<Tokens> expected = one_by_one(8, 120);
  Tree tree(8);
  std::jthread other([&](const std::stop_token& stop) {
    Random random(3);
    std::vector<Branch> forks;
    while (!stop.stop_requested()) {
      forks.push_back(tree.branches[static_cast<std::size_t>(random.below(8))].fork());
      if (forks.size() > 4) forks.erase(forks.begin() + random.below(5));
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  for (int call = 0; call < 12; ++call) tree.decode(sampled(10));
  other.request_stop();
  other.join();
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(tree.branches[i].tokens(), expected[i]) << i;
  tree.expect_sound();
  tree.expect_replayed();
}

TEST_P(EarlyStep, GivesPagesBackThatItTookInVain) {
  // 64 tokens are 4 pages: every branch ends with a token that would be the first of another.
  Tree tree(4);
  const std::vector<Tokens> free_run = one_by_one(4, 60);
  DecodeParams params = sampled(60);
  for (const Tokens& tokens : free_run) params.stop_tokens.push_back(tokens[64]);
  tree.decode(params);
  EXPECT_GT(tree.discarded(), 0);
  tree.expect_sound();
  tree.branches.clear();
  tree.root = {};
  test::expect_all_pages_free(tree.engine);
}

TEST_P(EarlyStep, WithoutAFreePageTheStepWaitsForItsTurn) {
  // 12 pages hold the prompt and a few tokens of each branch; the others' pages come and go.
  EngineOptions options{.kv_tokens = 12 * 16, .prefix_index = false};
  Tree tree(6, options);
  test::expect_short_texts(tree.session);
  const std::vector<Tokens> expected = one_by_one(6, 30);
  const std::vector<Generation> got = tree.decode(sampled(30));
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(got[i].finish, Finish::kLength);
    EXPECT_EQ(tree.branches[i].tokens(), expected[i]) << i;
  }
  EXPECT_GT(tree.session.stats().preemptions, 0);
  tree.expect_sound();
}

/// Branches let go of each other's states, and come back to them by rows of whole steps.
TEST_P(EarlyStep, WhereStatesAreFewTheStepWaitsForItsTurn) {
  EngineOptions options{.prefix_index = false};
  const EngineInfo info = Tree(1, options).engine.info();
  if (info.recurrent_layers == 0) GTEST_SKIP() << "has no states";
  constexpr std::int64_t kEnough = 6;  // of 8
  options.state_bytes = kEnough * (info.state_bytes + kChunkTokens * info.state_token_bytes);
  const std::vector<Tokens> expected = one_by_one(8, 60);
  Tree tree(8, options);
  std::shared_ptr<std::int64_t> unread;
  if (!on_cuda()) unread = count_unread(tree.engine);
  tree.decode(sampled(60));
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(tree.branches[i].tokens(), expected[i]) << i;
  EXPECT_GT(tree.session.stats().tokens_redundant, 0);
  if (unread) {
    EXPECT_GT(*unread, 0);
    EXPECT_LT(*unread, 8 * 59);
  }
  tree.expect_sound();
  tree.expect_replayed();
}

TEST_P(EarlyStep, BudgetAndCancellationEndItWhereTheyEndAStep) {
  const std::vector<Tokens> expected = one_by_one(4, 30);
  for (const std::int64_t budget : {45, 60, 63, 81}) {
    Tree tree(4, {.prefix_index = false}, {.tokens = budget});
    const std::vector<Generation> got = tree.decode(sampled(30));
    EXPECT_LE(tree.session.stats().tokens_computed, budget);
    // The prompt, the tokens that the branches were given, and then four rows a step.
    EXPECT_EQ(tree.session.stats().tokens_computed, budget);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(got[i].finish, Finish::kBudget);
      const Tokens tokens = tree.branches[i].tokens();
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected[i].begin()));
    }
    tree.expect_sound();
  }
  Tree tree(4);
  std::stop_source source;
  DecodeParams params = sampled(30);
  params.cancel = source.get_token();
  int tokens = 0;
  params.on_token = [&](const TokenEvent&) {
    if (++tokens == 20) source.request_stop();
  };
  for (const Generation& generation : tree.decode(params)) {
    EXPECT_EQ(generation.ids.size(), 5u);
    EXPECT_EQ(generation.finish, Finish::kCancelled);
  }
  EXPECT_EQ(tree.discarded(), 4);
  params.cancel = {};
  params.on_token = {};
  params.max_tokens = 25;
  tree.decode(params);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(tree.branches[i].tokens(), expected[i]) << i;
  tree.expect_replayed();
}

TEST_P(EarlyStep, ARaceEndsAtTheSameWinner) {
  for (const std::uint32_t seed : {1, 2, 3, 4, 5}) {
    const auto run = [&](std::int64_t at_a_time) {
      Tree tree(6);
      std::vector<Branch>& branches = tree.branches;
      DecodeParams params = sampled(at_a_time);
      params.stop_tokens = {static_cast<Token>(seed * 11), static_cast<Token>(seed * 17),
                            static_cast<Token>(seed * 31), static_cast<Token>(seed * 45)};
      std::size_t winner = branches.size();
      params.enough = [&](std::size_t index, const Generation& generation) {
        if (generation.finish != Finish::kStop) return false;
        winner = index;
        return true;
      };
      params.max_tokens = 60;
      tree.decode(params);
      tree.expect_sound();
      Tokens tokens;
      if (winner < 6) tokens = branches[winner].tokens();
      return std::pair(winner, tokens);
    };
    const auto [winner, tokens] = run(60);
    // By hand: the first of the free runs to draw one of the tokens.
    const std::vector<Tokens> free_run = one_by_one(6, 60);
    std::size_t expected = 6;
    for (std::size_t at = 41; at < 101 && expected == 6; ++at) {
      for (std::size_t i = 0; i < 6 && expected == 6; ++i) {
        for (const Token stop : {seed * 11, seed * 17, seed * 31, seed * 45}) {
          if (free_run[i][at] == static_cast<Token>(stop)) expected = i;
        }
      }
    }
    EXPECT_EQ(winner, expected) << seed;
  }
}

TEST_P(EarlyStep, WhatFailsThereFailsInTheStepItself) {
  if (on_cuda()) GTEST_SKIP() << "makes a CPU fail";
  const std::vector<Tokens> expected = one_by_one(3, 20);
  Tree tree(3);
  auto& backend = static_cast<SamplingBackend&>(*core_of(tree.engine)->backend);
  int failed = 0;
  backend.on_pass = [&](std::int64_t unread) {
    if (unread > 0 && failed++ % 3 == 0) throw Error("no memory for this pass");
  };
  tree.decode(sampled(20));
  EXPECT_GT(failed, 6);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(tree.branches[i].tokens(), expected[i]) << i;
  EXPECT_EQ(tree.session.stats().pages_used, core_of(tree.engine)->tree->pool().used_pages());
  tree.expect_sound();
  // A step that fails by itself is told, and loses nothing.
  backend.on_pass = [](std::int64_t) { throw Error("no memory for any pass"); };
  EXPECT_ERROR(tree.decode(sampled(5)), "no memory for any pass");
  backend.on_pass = {};
  tree.expect_sound();
  tree.decode(sampled(5));
  tree.expect_replayed();
}

TEST_P(EarlyStep, RandomTreesAreTheSameWithAndWithout) {
  if (on_cuda()) GTEST_SKIP() << "compares with the CPU's own sampling";
  for (std::uint32_t seed = 0; seed < static_cast<std::uint32_t>(test::scaled(20)); ++seed) {
    const auto run = [&](bool early) {
      Random random(seed);
      EngineOptions options;
      // (With recurrent layers pages have 16 tokens.)
      options.page_tokens = GetParam() == std::string("tinyllama") ? 8 : 16;
      options.kv_tokens =
          random.in(160 / options.page_tokens, 480 / options.page_tokens) * options.page_tokens;
      Engine engine = early ? load_sampling(EarlyStep::GetParam(), options)
                            : load(EarlyStep::GetParam(), options, "");
      Session session(engine, {.seed = seed});
      std::vector<Branch> branches;
      branches.push_back(session.prefill(random.tokens(random.in(1, 30), 256)));
      std::vector<Tokens> out;
      for (int op = 0; op < 25; ++op) {
        const auto pick = [&] {
          return static_cast<std::size_t>(random.below(std::ssize(branches)));
        };
        switch (random.below(4)) {
          case 0:
            if (branches.size() < 9) branches.push_back(branches[pick()].fork());
            break;
          case 1: {
            const std::size_t i = pick();
            if (branches.size() > 1)
              branches.erase(branches.begin() + static_cast<std::ptrdiff_t>(i));
            break;
          }
          default: {
            DecodeParams params = sampled(random.in(1, 12));
            params.stop_tokens = random.tokens(random.below(20), 256);
            params.ignore_eos = random.one_in(2);
            const auto count = static_cast<std::size_t>(random.in(1, std::ssize(branches)));
            session.decode(std::span(branches).first(count), params);
          }
        }
        EXPECT_TRUE(test::tree_is_sound(engine, {branches}));
      }
      for (const Branch& branch : branches) out.push_back(branch.tokens());
      return out;
    };
    EXPECT_EQ(run(true), run(false)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace dendrite
