// Tokens drawn ahead of their call: the same ones, at no one's cost, or without a trace.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "step/stepper.h"
#include "support/engine_support.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::expect_same;
using test::greedy;
using test::load;
using test::Random;
using test::replay;
using test::same_bits;
using test::Tokens;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

DecodeParams sampled(std::int64_t max_tokens) {
  return {.max_tokens = max_tokens, .temperature = 1.0, .ignore_eos = true, .slack = kNoLimit};
}

/// One branch that is decoded, and three that are expected to be.
struct Tree {
  explicit Tree(const EngineOptions& options = {.prefix_index = false},
                const std::string& model = "tinyllama", Budget budget = {})
      : engine(load(model, options)), session(engine, {.seed = 8, .budget = budget}) {
    likely = root.fork(3);
    for (std::size_t i = 0; i < 3; ++i) {
      likely[i].append(Tokens{static_cast<Token>(40 + i), static_cast<Token>(50 + i)});
    }
  }
  test::Tokens all_tokens() const {
    Tokens out;
    for (const Branch& branch : likely) {
      for (const Token token : branch.tokens()) out.push_back(token);
    }
    return out;
  }
  bool sound() {
    std::vector<const Tip*> tips{&state_of(root)->tip, &state_of(busy)->tip};
    for (const Branch& branch : likely) {
      if (!branch.valid()) continue;
      tips.push_back(&state_of(branch)->tip);
      if (const auto& ahead = state_of(branch)->ahead) tips.push_back(&ahead->state->tip);
    }
    core_of(engine)->tree->check_invariants(tips);  // throws
    return true;
  }

  Engine engine;
  Session session;
  Branch root = session.prefill(Random(4).tokens(40, 256));
  Branch busy = root.fork();
  std::vector<Branch> likely;
};

TEST(Ahead, ALaterDecodeTakesTheSameTokensOver) {
  DecodeParams params = sampled(20);
  params.top_logprobs = 2;
  Tree without;
  const std::vector<Generation> busy_alone = [&] {
    return std::vector{without.session.decode(without.busy, sampled(9))};
  }();
  const std::vector<Generation> expected = without.session.decode(without.likely, params);

  Tree tree;
  const Tokens before = tree.all_tokens();
  DecodeParams first = params;
  first.max_tokens = 9;
  first.on_token = [&](const TokenEvent& event) { EXPECT_EQ(event.branch, tree.busy.id()); };
  const std::vector<Generation> busy =
      tree.session.decode(std::span(&tree.busy, 1), first, tree.likely);
  EXPECT_EQ(busy.front().ids, busy_alone.front().ids);
  EXPECT_EQ(tree.all_tokens(), before);
  for (const Branch& branch : tree.likely) {
    EXPECT_EQ(branch.finish(), Finish::kRunning);
    EXPECT_EQ(branch.logprob(), 0);
  }
  Stats stats = tree.session.stats();
  EXPECT_EQ(stats.tokens_ahead, 3 * 8);  // the first step of the other needs no pass
  EXPECT_EQ(stats.tokens_taken, 0);
  EXPECT_EQ(stats.tokens_generated, 9);
  EXPECT_EQ(stats.steps, 1 + 8);
  EXPECT_TRUE(tree.sound());

  std::vector<Tokens> told(3);
  params.on_token = [&](const TokenEvent& event) { told[event.index].push_back(event.token); };
  expect_same(tree.session.decode(tree.likely, params), expected);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(told[i], expected[i].ids);
    EXPECT_EQ(tree.likely[i].tokens(), without.likely[i].tokens());
    EXPECT_EQ(tree.likely[i].logprob(), without.likely[i].logprob());
    EXPECT_EQ(tree.likely[i].stats().tokens_generated, 20);
    EXPECT_EQ(tree.likely[i].stats().tokens_computed, without.likely[i].stats().tokens_computed);
    EXPECT_TRUE(
        same_bits(bits_of(tree.likely[i]),
                  replay(load("tinyllama", {.prefix_index = false}), tree.likely[i].tokens())));
  }
  stats = tree.session.stats();
  EXPECT_EQ(stats.tokens_taken, 3 * 8);
  EXPECT_EQ(stats.tokens_computed, without.session.stats().tokens_computed + 3);  // bits_of's
  EXPECT_EQ(stats.tokens_independent, without.session.stats().tokens_independent + 3 * 62);
  EXPECT_EQ(stats.tokens_redundant, 0);
  EXPECT_EQ(core_of(tree.session)->naive_pages, core_of(without.session)->naive_pages);
  EXPECT_EQ(tree.root.fork().id(), without.root.fork().id());
  EXPECT_TRUE(tree.sound());
}

TEST(Ahead, OneTokenAtATimeTakesThemOver) {
  Tree without;
  const Tokens expected = without.session.decode(without.likely[1], sampled(12)).ids;
  Tree tree;
  tree.session.decode(std::span(&tree.busy, 1), sampled(7), tree.likely);
  const std::int64_t computed = tree.session.stats().tokens_computed;
  Tokens got;
  for (int i = 0; i < 12; ++i) {
    got.push_back(tree.session.decode_step(tree.likely[1], sampled(1)).value());
    EXPECT_TRUE(tree.sound());
    EXPECT_EQ(tree.session.stats().tokens_computed, computed + std::max(0, i - 5));
  }
  EXPECT_EQ(got, expected);
  EXPECT_EQ(tree.session.stats().tokens_computed, computed + 6);
  EXPECT_EQ(tree.session.stats().tokens_redundant, 0);
}

TEST(Ahead, AsMuchIsToldOfThemAsTheCallAsksFor) {
  Tree tree;
  DecodeParams params = sampled(6);
  params.top_logprobs = 3;
  tree.session.decode({}, params, tree.likely);
  EXPECT_TRUE(tree.session.decode(tree.likely[0], sampled(6)).logprobs.empty());
  params.top_logprobs = 0;
  for (const ChosenToken& chosen : tree.session.decode(tree.likely[1], params).logprobs) {
    EXPECT_TRUE(chosen.top.empty());
  }
  EXPECT_EQ(tree.session.stats().tokens_taken, 12);
  params.top_logprobs = 2;  // of other numbers of likeliest tokens there are none
  for (const ChosenToken& chosen : tree.session.decode(tree.likely[2], params).logprobs) {
    EXPECT_EQ(chosen.top.size(), 2u);
  }
  EXPECT_EQ(tree.session.stats().tokens_taken, 12);
}

TEST(Ahead, GoesOnWhereItWas) {
  Tree without;
  const std::vector<Generation> expected = without.session.decode(without.likely, sampled(15));
  Tree tree;
  for (int i = 0; i < 4; ++i) {
    tree.session.decode(std::span(&tree.busy, 1), sampled(3), tree.likely);
  }
  EXPECT_EQ(tree.session.stats().tokens_ahead, 3 * 3);  // no more than the call would draw
  tree.session.decode(std::span(&tree.busy, 1), sampled(30), tree.likely);
  expect_same(tree.session.decode(tree.likely, sampled(15)), expected);
}

TEST(Ahead, StopsAndTextsAreThoseOfOneCall) {
  // Random letters, and stop strings that lie across the place where drawing ahead ended.
  Tree start({.prefix_index = false}, "llama2");
  DecodeParams params = sampled(40);
  for (const char c : std::string("ab")) {
    params.logit_bias.emplace_back(start.engine.encode(std::string(1, c), false).front(), 100.0f);
  }
  params.stop = {"aaaa", "abab"};
  const std::vector<Generation> expected = start.session.decode(start.likely, params);
  for (const Generation& generation : expected) ASSERT_EQ(generation.finish, Finish::kStop);
  for (std::int64_t tokens = 1; tokens < 30; ++tokens) {
    Tree tree({.prefix_index = false}, "llama2");
    DecodeParams other = params;
    other.max_tokens = tokens;
    other.stop.clear();
    tree.session.decode(std::span(&tree.busy, 1), other, tree.likely);
    expect_same(tree.session.decode(tree.likely, params), expected);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(tree.likely[i].text(), start.likely[i].text());
    }
    EXPECT_TRUE(tree.sound());
  }
}

TEST(Ahead, EndsWhereTheBranchWould) {
  Tree without;
  DecodeParams params = sampled(60);
  for (Token token = 0; token < 320; token += 12) params.stop_tokens.push_back(token);
  const std::vector<Generation> expected = without.session.decode(without.likely, params);
  std::size_t drawn = 0;
  for (const Generation& generation : expected) {
    EXPECT_EQ(generation.finish, Finish::kStop);
    drawn += generation.ids.size();
  }
  Tree tree;
  tree.session.decode({}, params, tree.likely);
  EXPECT_EQ(tree.session.stats().tokens_ahead, static_cast<std::int64_t>(drawn));
  const std::int64_t computed = tree.session.stats().tokens_computed;
  expect_same(tree.session.decode(tree.likely, params), expected);
  EXPECT_EQ(tree.session.stats().tokens_computed, computed);
}

TEST(Ahead, IsNotShownToTheRuleThatEndsTheCall) {
  Tree tree;
  DecodeParams params = sampled(60);
  for (Token token = 0; token < 320; token += 12) params.stop_tokens.push_back(token);
  std::vector<std::size_t> shown;
  params.enough = [&](std::size_t index, const Generation& generation) {
    EXPECT_EQ(generation.ids.size(), static_cast<std::size_t>(tree.busy.length() - 40));
    shown.push_back(index);
    return true;
  };
  tree.session.decode(std::span(&tree.busy, 1), params, tree.likely);
  EXPECT_EQ(shown, std::vector<std::size_t>{0});
  for (const Branch& branch : tree.likely) EXPECT_TRUE(branch.valid());
}

TEST(Ahead, EndsAtAStopThatBeganBefore) {
  Tree tree({.prefix_index = false}, "llama2");
  const Tokens sun = tree.engine.encode("\xe6\x97\xa5", false);
  ASSERT_EQ(sun.size(), 3u);
  for (Branch& branch : tree.likely) branch.append(std::span(sun).first(2));
  DecodeParams params = sampled(5);
  params.logit_bias = {{sun[2], 1000.0f}};
  params.stop = {"\xe6\x97\xa5"};
  tree.session.decode({}, params, tree.likely);
  EXPECT_EQ(tree.session.stats().tokens_ahead, 3);
  for (const Generation& out : tree.session.decode(tree.likely, params)) {
    EXPECT_EQ(out.finish, Finish::kStop);
    EXPECT_EQ(out.ids.size(), 1u);
  }
}

TEST(Ahead, OtherParametersAndChangesDropThemWithoutTrace) {
  Tree without;
  DecodeParams other = sampled(10);
  other.temperature = 0.7;
  without.session.decode(without.busy, sampled(10));
  const Generation drawn = without.session.decode(without.likely[0], other);
  without.likely[1].append(Tokens{7});
  const Generation appended = without.session.decode(without.likely[1], sampled(10));
  Branch child = without.likely[2].fork();
  const Generation forked = without.session.decode(child, sampled(10));

  Tree tree;
  const std::int64_t pages = tree.session.stats().pages_used;
  tree.session.decode(std::span(&tree.busy, 1), sampled(10), tree.likely);
  EXPECT_EQ(tree.session.decode(tree.likely[0], other).ids, drawn.ids);
  tree.likely[1].append(Tokens{7});
  EXPECT_EQ(tree.session.decode(tree.likely[1], sampled(10)).ids, appended.ids);
  Branch same = tree.likely[2].fork();
  EXPECT_EQ(tree.session.decode(same, sampled(10)).ids, forked.ids);
  EXPECT_EQ(tree.session.stats().tokens_taken, 0);
  tree.likely.clear();
  same.prune();
  tree.busy = tree.root.fork();
  EXPECT_EQ(tree.session.stats().pages_used, pages);
  EXPECT_TRUE(tree.sound());
}

TEST(Ahead, WhatItShowsDoesNotDependOnSlack) {
  std::vector<Generation> expected;
  for (const double slack : {1.0, 1.05, 1.5, kNoLimit}) {
    Tree tree;
    DecodeParams params = sampled(25);
    params.slack = slack;
    tree.session.decode(std::span(&tree.busy, 1), params, tree.likely);
    std::vector<Generation> got = tree.session.decode(tree.likely, params);
    if (expected.empty()) expected = got;
    expect_same(got, expected);
  }
}

/// Steps of up to six rows take 10 ms, each further row one more.
class SixRowsAreFree final : public StepTimes {
 public:
  void record(std::int64_t rows, double) override {
    StepTimes::record(rows, rows <= 6 ? 10.0 : 4.0 + static_cast<double>(rows));
  }
};

TEST(Ahead, RunsInTheSlackOfOtherSteps) {
  Tree tree;
  core_of(tree.engine)->stepper->times = std::make_unique<SixRowsAreFree>();
  std::vector<Branch> four = tree.root.fork(4);
  std::vector<Branch> eight = tree.root.fork(8);
  std::vector<std::int64_t> rows;
  const EventSubscription events = tree.engine.on_event(
      mask_of(EventKind::kStep), [&](const Event& event) { rows.push_back(event.rows); });
  DecodeParams params = sampled(60);
  params.slack = 1.05;
  tree.session.decode(four, params, eight);
  ASSERT_EQ(rows.size(), 59u);
  EXPECT_EQ(rows[0], 4);  // alone, to see how long that takes
  EXPECT_EQ(std::ranges::count(std::span(rows).subspan(20), 6), 39);
  EXPECT_LE(std::ranges::count_if(rows, [](std::int64_t n) { return n > 6; }), 3);
  rows.clear();
  core_of(tree.engine)->stepper->times = std::make_unique<SixRowsAreFree>();  // it may try again
  params.slack = 1.4;
  tree.session.decode(four, params, eight);
  EXPECT_GE(std::ranges::count(rows, 10), 30);  // 14 ms; until they have all tokens of the call
}

TEST(Ahead, DoesNotAddAPassWhereNoneIsNeeded) {
  Tree tree;
  std::vector<Branch> others = tree.root.fork(2);
  tree.session.decode({}, sampled(10), std::span(tree.likely).first(1));
  const std::int64_t steps = tree.session.stats().steps;
  // All ten come from what was drawn ahead.
  tree.session.decode(std::span(tree.likely).first(1), sampled(10), others);
  EXPECT_EQ(tree.session.stats().steps, steps);
  EXPECT_EQ(tree.session.stats().tokens_taken, 10);
}

TEST(Ahead, TakesNoPagesThatOthersHaveAndGivesWayFirst) {
  // 13 pages: the root has 3, an idle branch 5, and what is decoded takes 2, then 3.
  Tree tree({.kv_tokens = 13 * 16, .prefix_index = false});
  Branch idle = tree.session.prefill(Random(9).tokens(70, 256));
  const KvTree& kv = *core_of(tree.engine)->tree;
  tree.session.decode(std::span(&tree.busy, 1), sampled(20), tree.likely);
  EXPECT_GT(tree.session.stats().tokens_ahead, 0);
  EXPECT_EQ(tree.session.stats().pages_used, 13);
  EXPECT_EQ(kv.computed(state_of(idle)->tip), 70);
  const std::int64_t evictions = tree.session.stats().evictions;
  tree.session.decode(tree.busy, sampled(20));
  EXPECT_GT(tree.session.stats().evictions, evictions);
  EXPECT_EQ(kv.computed(state_of(idle)->tip), 70);
  EXPECT_EQ(tree.busy.length(), 80);
  // What they lost is computed again.
  idle.prune();
  Tree without;
  const std::vector<Generation> expected = without.session.decode(without.likely, sampled(16));
  expect_same(tree.session.decode(tree.likely, sampled(16)), expected);
  EXPECT_GT(tree.session.stats().tokens_taken, 0);
}

TEST(Ahead, AloneRunsUntilAllHaveEnded) {
  Tree without;
  const std::vector<Generation> expected = without.session.decode(without.likely, sampled(12));
  Tree tree;
  EXPECT_TRUE(tree.session.decode({}, sampled(12), tree.likely).empty());
  EXPECT_EQ(tree.session.stats().tokens_ahead, 36);
  expect_same(tree.session.decode(tree.likely, sampled(12)), expected);
  EXPECT_EQ(tree.session.stats().tokens_taken, 36);
}

TEST(Ahead, AloneEndsWhenNoPageIsLeft) {
  Tree tree({.kv_tokens = 80, .prefix_index = false});
  tree.session.decode({}, sampled(50), tree.likely);
  EXPECT_GT(tree.session.stats().tokens_ahead, 0);
  EXPECT_LT(tree.session.stats().tokens_ahead, 150);
  EXPECT_EQ(tree.session.stats().evictions, 0);
  EXPECT_FALSE(tree.session.shortage().has_value());
  for (const Branch& branch : tree.likely) EXPECT_EQ(branch.finish(), Finish::kRunning);
}

TEST(Ahead, RememberedPromptsGiveWay) {
  Tree tree({.kv_tokens = 160, .prefix_index = true});
  tree.session.prefill(Random(9).tokens(100, 256)).prune();
  const Engine engine = tree.engine;
  ASSERT_EQ(engine.stats().pages_free, 0);
  tree.session.decode({}, sampled(10), std::span(tree.likely).first(1));
  EXPECT_EQ(tree.session.stats().tokens_ahead, 10);
}

TEST(Ahead, ACallThatIsCancelledKeepsWhatItHas) {
  Tree without;
  const std::vector<Generation> expected = without.session.decode(without.likely, sampled(40));
  Tree tree;
  std::stop_source source;
  DecodeParams params = sampled(40);
  params.cancel = source.get_token();
  int steps = 0;
  const EventSubscription events =
      tree.engine.on_event(mask_of(EventKind::kStep), [&](const Event&) {
        if (++steps == 5) source.request_stop();
      });
  tree.session.decode({}, params, tree.likely);
  EXPECT_EQ(steps, 5);
  EXPECT_EQ(tree.session.stats().tokens_ahead, 15);
  expect_same(tree.session.decode(tree.likely, sampled(40)), expected);
}

TEST(Ahead, CountsAgainstTheBudgetWhenItIsTakenOver) {
  for (const std::int64_t budget : {40, 41, 45, 60, 61, 75}) {
    SCOPED_TRACE(budget);
    Tree without({.prefix_index = false}, "tinyllama", {.tokens = budget});
    const Generation expected = without.session.decode(without.likely[0], sampled(30));
    Tree tree({.prefix_index = false}, "tinyllama", {.tokens = budget});
    if (budget > 40) {
      tree.session.decode({}, sampled(25), tree.likely);
      EXPECT_EQ(tree.session.stats().tokens_ahead, 75);
    }
    const Generation got = tree.session.decode(tree.likely[0], sampled(30));
    EXPECT_EQ(got.ids, expected.ids);
    EXPECT_EQ(got.finish, expected.finish);
  }
}

TEST(Ahead, DoesNotOverrunTheBudgetOfManyBranches) {
  Tree tree({.prefix_index = false}, "tinyllama", {.tokens = 60});
  tree.session.decode({}, sampled(25), tree.likely);
  const std::vector<Generation> out = tree.session.decode(tree.likely, sampled(25));
  EXPECT_EQ(core_of(tree.session)->spent_tokens(), 60);
  std::size_t tokens = 0;
  for (const Generation& generation : out) {
    EXPECT_EQ(generation.finish, Finish::kBudget);
    tokens += generation.ids.size();
  }
  EXPECT_EQ(tokens, 20u - 3);  // two rows each before the first
}

TEST(Ahead, GoesNoFurtherThanAnAncestorThatTheBudgetCuts) {
  // 30 tokens that both wait for, of which the budget pays ten.
  Tree tree({.prefix_index = false}, "tinyllama", {.tokens = 50});
  tree.busy.append(Random(5).tokens(30, 256));
  std::vector<Branch> likely = tree.busy.fork(2);
  for (Branch& branch : likely) branch.append(Tokens{3});
  const Generation out = tree.session.decode(std::span(&tree.busy, 1), sampled(5), likely).front();
  EXPECT_EQ(out.finish, Finish::kBudget);
  EXPECT_EQ(tree.session.stats().tokens_computed, 50);
  EXPECT_EQ(core_of(tree.engine)->tree->computed(state_of(likely[0])->tip), 50);
}

TEST(Ahead, IsNotSaved) {
  TemporaryFolder folder;
  Tree without;
  const std::vector<Generation> expected = without.session.decode(without.likely, sampled(12));
  Tree tree;
  tree.session.decode({}, sampled(8), tree.likely);
  tree.session.save(folder.path() / "ahead");
  Restored restored = tree.engine.restore(folder.path() / "ahead");
  ASSERT_EQ(restored.branches.size(), 5u);
  EXPECT_EQ(restored.session.stats().tokens_computed, 40);
  expect_same(restored.session.decode(std::span(restored.branches).last(3), sampled(12)), expected);
}

TEST(Ahead, ABranchIsNamedOnce) {
  Tree tree;
  EXPECT_ERROR(tree.session.decode(tree.likely, sampled(3), std::span(tree.likely).last(1)),
               "ahead branch 0 is named twice");
  EXPECT_ERROR(tree.session.decode({}, {.slack = 0.99}, tree.likely), "slack is 0.99");
  EXPECT_ERROR(tree.session.decode({}, {.slack = std::nan("")}, tree.likely), "expected >= 1");
  Branch empty;
  EXPECT_ERROR(tree.session.decode({}, sampled(3), std::span(&empty, 1)),
               "ahead branch 0 is empty");
}

TEST(Ahead, WhileAnotherThreadThinks) {
  Tree without;
  const std::vector<Generation> expected = without.session.decode(without.likely, sampled(200));
  Tree tree({.threads = 2, .prefix_index = false});
  std::stop_source source;
  DecodeParams params = sampled(200);
  params.cancel = source.get_token();
  std::thread engine([&] { tree.session.decode({}, params, tree.likely); });
  while (tree.session.stats().tokens_ahead < 6) {
    const Branch thought = tree.root.fork();
    EXPECT_EQ(thought.length(), 40);
  }
  source.request_stop();
  engine.join();
  expect_same(tree.session.decode(tree.likely, sampled(200)), expected);
}

}  // namespace
}  // namespace dendrite
