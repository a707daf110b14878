// Rules by which a decode call ends for all of its branches: who wins, and what becomes of the
// rest.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::Random;
using test::Tokens;

Tokens prompt_of(std::int64_t count) {
  return Random(31).tokens(count, 256);
}

/// Random tokens, one in twenty of which ends a branch.
DecodeParams until_stop(std::int64_t max_tokens) {
  DecodeParams params{.max_tokens = max_tokens, .temperature = 1.0, .ignore_eos = true};
  for (Token token = 0; token < 320; token += 20) params.stop_tokens.push_back(token);
  return params;
}

constexpr int kBranches = 8;

/// Eight forks of one prompt, and how each ends by itself.
struct Race {
  explicit Race(EngineOptions options, std::uint64_t seed = 9)
      : engine(load("tinyllama", on_any_cpu(options))), session(engine, {.seed = seed}) {
    branches = root.fork(kBranches);
  }
  /// Whether branches get into each other's way depends on what they draw.
  static EngineOptions on_any_cpu(EngineOptions options) {
    options.kernels = "portable";
    return options;
  }

  Engine engine;
  Session session;
  Branch root = session.prefill(std::span<const Token>(prompt_of(40)));
  std::vector<Branch> branches;
};

const EngineOptions kLarge{.prefix_index = false};

std::vector<Generation> ends_alone(std::uint64_t seed = 9) {
  Race race(kLarge, seed);
  return race.session.decode(race.branches, until_stop(80));
}

/// Places by tokens generated, then by place.
std::vector<std::size_t> in_order(const std::vector<Generation>& ends) {
  std::vector<std::size_t> order(ends.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return ends[i].ids.size(); });
  return order;
}

/// The first `count` in order end the call; everything else is as it must be.
void expect_winners(Race& race, std::int64_t count) {
  const std::vector<Generation> alone = ends_alone(core_of(race.session)->options.seed);
  const std::vector<std::size_t> order = in_order(alone);
  DecodeParams params = until_stop(80);
  std::vector<std::size_t> shown;
  params.enough = [&](std::size_t index, const Generation& generation) {
    EXPECT_EQ(generation.ids, alone[index].ids);
    EXPECT_EQ(generation.finish, alone[index].finish);
    shown.push_back(index);
    return std::ssize(shown) == count;
  };
  const std::vector<Generation> out = race.session.decode(race.branches, params);
  EXPECT_EQ(shown, std::vector<std::size_t>(order.begin(), order.begin() + count));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (std::ranges::count(shown, i) > 0) {
      EXPECT_EQ(out[i].ids, alone[i].ids);
      EXPECT_EQ(race.branches[i].finish(), alone[i].finish);
    } else {
      EXPECT_EQ(out[i].finish, Finish::kAbandoned);
      EXPECT_TRUE(out[i].ids.empty());
      EXPECT_TRUE(out[i].text.empty());
      EXPECT_FALSE(race.branches[i].valid());
    }
  }
  EXPECT_EQ(race.session.stats().branches_live, 1 + count);
  EXPECT_TRUE(
      test::tree_is_sound(race.engine, {std::span(&race.root, 1), std::span(race.branches)}));
}

TEST(Stops, BranchesEndAtDifferentPlaces) {  // else the tests below say little
  std::set<std::size_t> lengths;
  for (const Generation& end : ends_alone()) lengths.insert(end.ids.size());
  EXPECT_GE(lengths.size(), 5u);
}

TEST(Stops, FirstSuccessAndQuorumsLeaveTheWinners) {
  for (const std::int64_t count : {1, 2, 5, kBranches}) {
    SCOPED_TRACE(count);
    Race race(kLarge);
    expect_winners(race, count);
  }
}

TEST(Stops, WinnersDoNotDependOnThePages) {
  // 12 pages, of which the root has two whole ones: most branches wait while others run to their
  // end.
  for (const std::int64_t kv_tokens : {8 * 16, 12 * 16}) {
    std::int64_t steps = 0;
    std::int64_t steps_with_room = 0;
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      SCOPED_TRACE(seed);
      Race race({.kv_tokens = kv_tokens, .prefix_index = false}, seed);
      expect_winners(race, 4);
      steps += race.session.stats().steps;
      Race roomy(kLarge, seed);
      expect_winners(roomy, 4);
      steps_with_room += roomy.session.stats().steps;
    }
    EXPECT_GT(steps, 2 * steps_with_room);  // or nobody waited
  }
}

TEST(Stops, WinnersDoNotDependOnTheRowsOfAStep) {
  for (const std::int64_t rows : {1, 3, 7}) {
    Race race(kLarge);
    core_of(race.engine)->step_rows = rows;
    for (std::size_t i = 0; i < kBranches; ++i) race.branches[i].set_priority(static_cast<int>(i));
    expect_winners(race, 3);
  }
}

TEST(Stops, WinnersDoNotDependOnPriorities) {
  // 8 pages take a branch of 113 tokens beside the root: some that run ahead of the winner are cut.
  std::int64_t cut = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Race race({.kv_tokens = 8 * 16, .prefix_index = false}, seed);
    const EventSubscription events = race.engine.on_event(
        mask_of(EventKind::kFinish),
        [&](const Event& event) { cut += event.finish == Finish::kBudget ? 1 : 0; });
    for (std::size_t i = 0; i < kBranches; ++i) race.branches[i].set_priority(static_cast<int>(i));
    expect_winners(race, 1);
  }
  EXPECT_GT(cut, 0);
}

TEST(Stops, ABranchThatWasCutBeforeTheWinnersEndIsKept) {
  // Branch 7 has a page and a half more than the others, which leaves it fewer tokens.
  Race race({.kv_tokens = 8 * 16, .prefix_index = false});
  race.branches[7].append(prompt_of(50));
  race.branches[7].set_priority(1);
  DecodeParams params = greedy(40);
  params.enough = [](std::size_t, const Generation&) { return true; };
  const std::vector<Generation> out = race.session.decode(race.branches, params);
  EXPECT_EQ(out[0].finish, Finish::kLength);
  EXPECT_EQ(out[7].finish, Finish::kBudget);
  EXPECT_EQ(out[7].ids.size(), 23u);
  EXPECT_TRUE(race.branches[7].valid());
  EXPECT_EQ(race.session.stats().branches_live, 3);
}

TEST(Stops, WinnersDoNotDependOnPendingTokens) {
  // 700 tokens take two steps before the first is drawn.
  Race race(kLarge);
  race.branches[0].append(prompt_of(700));
  DecodeParams params = greedy(3);
  params.enough = [](std::size_t, const Generation&) { return true; };
  const std::vector<Generation> out = race.session.decode(race.branches, params);
  EXPECT_EQ(out[0].finish, Finish::kLength);
  EXPECT_EQ(out[1].finish, Finish::kAbandoned);
}

TEST(Stops, OnATieTheFirstOfTheSpanWins) {
  Race race(kLarge);
  DecodeParams params = greedy(12);
  params.enough = [](std::size_t, const Generation&) { return true; };
  const std::vector<Generation> out = race.session.decode(race.branches, params);
  EXPECT_EQ(out[0].finish, Finish::kLength);
  EXPECT_EQ(out[0].ids.size(), 12u);
  for (std::size_t i = 1; i < out.size(); ++i) EXPECT_EQ(out[i].finish, Finish::kAbandoned);
}

TEST(Stops, PagesOfTheOthersAreBackInTheSameStep) {
  Race race(kLarge);
  const std::int64_t before = race.session.stats().pages_used;
  std::int64_t steps = 0;
  std::int64_t pages = 0;
  std::vector<std::pair<std::int64_t, Finish>> finished;  // in which step
  const EventSubscription events = race.engine.on_event(
      mask_of(EventKind::kStep, EventKind::kFinish, EventKind::kPrune), [&](const Event& event) {
        steps += event.kind == EventKind::kStep ? 1 : 0;
        pages = event.pages_used;
        if (event.kind == EventKind::kFinish) finished.emplace_back(steps, event.finish);
      });
  DecodeParams params = greedy(50);
  std::int64_t held = 0;
  params.enough = [&](std::size_t, const Generation&) {
    held = race.session.stats().pages_used;
    return true;
  };
  const std::vector<Generation> out = race.session.decode(race.branches, params);
  // The first token comes from the prompt's distribution; each further one takes a step of rows.
  EXPECT_EQ(steps, 49);
  EXPECT_EQ(finished.front(), std::pair(std::int64_t{49}, Finish::kLength));
  for (const auto& [step, finish] : finished) EXPECT_EQ(step, 49);
  EXPECT_EQ(std::ranges::count(finished, std::pair(std::int64_t{49}, Finish::kAbandoned)), 7);
  EXPECT_GE(held, before + 4 * kBranches);
  EXPECT_EQ(pages, before + 4);  // a copy of the prompt's last page, and 41 tokens more
  EXPECT_EQ(race.session.stats().pages_used, pages);
  EXPECT_EQ(race.session.stats().tokens_computed, 40 + 49 * kBranches);
  EXPECT_EQ(race.session.stats().tokens_redundant, 0);
}

TEST(Stops, ARuleMayLookAtTheBranchesAndForkThem) {
  Race race(kLarge);
  DecodeParams params = until_stop(80);
  Branch copy;
  params.enough = [&](std::size_t index, const Generation& generation) {
    EXPECT_EQ(race.branches[index].length(), 40 + std::ssize(generation.ids));
    copy = race.branches[index].fork();
    return true;
  };
  const std::vector<Generation> out = race.session.decode(race.branches, params);
  const std::size_t winner = in_order(ends_alone()).front();
  EXPECT_EQ(copy.tokens(), race.branches[winner].tokens());
}

TEST(Stops, BranchesThatWereCutAreNotShown) {
  Race race(kLarge);
  std::stop_source source;
  DecodeParams params = until_stop(80);
  params.cancel = source.get_token();
  const std::vector<Generation> alone = ends_alone();
  const std::size_t first = in_order(alone).front();
  std::vector<std::size_t> shown;
  params.enough = [&](std::size_t index, const Generation&) {
    shown.push_back(index);
    source.request_stop();
    return false;
  };
  const std::vector<Generation> out = race.session.decode(race.branches, params);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool ended = alone[i].ids.size() == alone[first].ids.size();
    EXPECT_EQ(out[i].finish, ended ? alone[i].finish : Finish::kCancelled);
    EXPECT_EQ(std::ranges::count(shown, i), ended ? 1 : 0);
    EXPECT_TRUE(race.branches[i].valid());
  }
}

TEST(Stops, ABranchThatWaitsForPagesUntilTheCallEndsDoesNotHideTheWinner) {
  // Branch 7 finishes; the others can never run. What has finished by then is shown.
  Race race({.kv_tokens = 6 * 16, .prefix_index = false});
  for (std::size_t i = 0; i < 7; ++i) race.branches[i].append(prompt_of(200));
  DecodeParams params = greedy(5);
  std::vector<std::size_t> shown;
  params.enough = [&](std::size_t index, const Generation&) {
    shown.push_back(index);
    return true;
  };
  const std::vector<Generation> out = race.session.decode(race.branches, params);
  EXPECT_EQ(shown, std::vector<std::size_t>{7});
  EXPECT_EQ(out[7].finish, Finish::kLength);
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(out[i].finish, Finish::kBudget);
    EXPECT_TRUE(race.branches[i].valid());
  }
}

TEST(Stops, OfCallsForNoTokensTheFirstIsEnough) {
  Race race(kLarge);
  DecodeParams params = greedy(0);
  params.enough = [](std::size_t, const Generation&) { return true; };
  const std::vector<Generation> out = race.session.decode(race.branches, params);
  EXPECT_EQ(out[0].finish, Finish::kLength);
  EXPECT_EQ(race.session.stats().branches_live, 2);
}

}  // namespace
}  // namespace dendrite
