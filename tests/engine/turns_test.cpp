// Who goes first where not all that want to run fit into a step.
#include "step/turns.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::Random;
using test::Tokens;

struct Waiter {
  std::string name;
  Turn turn;
};

std::string order_of(std::vector<Waiter> waiters, std::int64_t rows) {
  std::vector<Waiter*> pointers;
  for (Waiter& waiter : waiters) pointers.push_back(&waiter);
  order_turns(pointers, rows);
  std::string out;
  for (const Waiter* waiter : pointers) out += waiter->name;
  return out;
}

TEST(Turns, ByPriorityThenTokensThenPlace) {
  EXPECT_EQ(order_of({{"a", {.priority = -2147483647 - 1}},
                      {"b", {.priority = 0, .tokens = 3, .place = 1}},
                      {"c", {.priority = 0, .tokens = 2, .place = 9}},
                      {"d", {.priority = 5, .tokens = 9}},
                      {"e", {.priority = 0, .tokens = 3, .place = 0}}},
                     8),
            "dceba");
}

TEST(Turns, WhoHasWaitedLongComesFirstForAnEighthOfTheRows) {
  const std::vector<Waiter> waiters{{"a", {.priority = 9}},
                                    {"b", {.priority = 1, .waited = kPatience}},
                                    {"c", {.priority = 2, .place = 1, .waited = kPatience}},
                                    {"d", {.priority = 3, .waited = kPatience - 1}},
                                    {"e", {.priority = 0, .waited = kPatience + 1}}};
  EXPECT_EQ(order_of(waiters, 1), "eadcb");
  EXPECT_EQ(order_of(waiters, 15), "eadcb");
  EXPECT_EQ(order_of(waiters, 16), "ecadb");
  EXPECT_EQ(order_of(waiters, 32), "ecbad");
}

/// An engine whose steps take few rows, and branches of one prompt.
struct Crowd {
  Crowd(std::int64_t rows, int branches) {
    core_of(engine)->step_rows = rows;
    for (Branch& branch : root.fork(branches)) crowd.push_back(std::move(branch));
  }

  Engine engine = load("tinyllama", {.prefix_index = false});
  Session session{engine, {.seed = 5}};
  Tokens prompt = Random(6).tokens(20, 256);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> crowd;
};

DecodeParams sampled(std::int64_t max_tokens) {
  return {.max_tokens = max_tokens, .temperature = 1.0, .ignore_eos = true};
}

std::vector<Tokens> tokens_of(const std::vector<Generation>& generations) {
  std::vector<Tokens> out;
  for (const Generation& generation : generations) out.push_back(generation.ids);
  return out;
}

/// Rows of branches of one parent that compute what another of them has, too: all tokens but the
/// last are computed.
std::int64_t repeated_rows(const std::vector<Tokens>& generated) {
  std::int64_t rows = 0;
  std::set<Tokens> paths;
  for (const Tokens& tokens : generated) {
    for (auto end = tokens.begin() + 1; end < tokens.end(); ++end) {
      ++rows;
      paths.insert(Tokens(tokens.begin(), end));
    }
  }
  return rows - std::ssize(paths);
}

TEST(Turns, BranchesFinishByPriorityWithTheSameTokens) {
  Crowd wide(512, 8);
  const std::vector<Tokens> expected = tokens_of(wide.session.decode(wide.crowd, sampled(6)));
  EXPECT_EQ(wide.session.stats().tokens_redundant, 0);  // equal rows are computed in one step
  for (const std::int64_t rows : {1, 2, 3}) {
    SCOPED_TRACE(rows);
    Crowd narrow(rows, 8);
    const int priorities[] = {3, 0, 7, 1, 6, 2, 5, 4};
    for (std::size_t i = 0; i < 8; ++i) narrow.crowd[i].set_priority(priorities[i]);
    std::vector<int> finished;
    std::int64_t widest = 0;
    const EventSubscription events = narrow.engine.on_event(
        mask_of(EventKind::kFinish, EventKind::kStep), [&](const Event& event) {
          widest = std::max(widest, event.rows);
          for (std::size_t i = 0; i < 8; ++i) {
            const bool ended = event.kind == EventKind::kFinish;
            if (ended && narrow.crowd[i].id() == event.branch) finished.push_back(priorities[i]);
          }
        });
    EXPECT_EQ(tokens_of(narrow.session.decode(narrow.crowd, sampled(6))), expected);
    // (Those that have waited long get a row in between, which ends none before its turn.)
    EXPECT_EQ(finished.size(), 8u);
    EXPECT_TRUE(std::ranges::is_sorted(finished, std::ranges::greater()));
    EXPECT_EQ(widest, rows);
    // Here one after the other, but where they come to share a step.
    const std::int64_t redundant = narrow.session.stats().tokens_redundant;
    EXPECT_LE(redundant, repeated_rows(expected));
    if (rows == 1) {
      EXPECT_EQ(redundant, repeated_rows(expected));
    }
  }
}

TEST(Turns, NobodyStarves) {
  Crowd narrow(4, 6);
  for (std::size_t i = 0; i < 4; ++i) narrow.crowd[i].set_priority(1);
  std::map<BranchId, int> waits;
  std::map<BranchId, int> longest;
  std::map<BranchId, int> rows;
  const EventSubscription events =
      narrow.engine.on_event(mask_of(EventKind::kStep), [&](const Event& event) {
        for (const BranchId id : event.waited) longest[id] = std::max(longest[id], ++waits[id]);
        for (const BranchId id : event.ran) waits[id] = 0;
        for (const BranchId id : event.ran) ++rows[id];
      });
  std::vector<int> at_first_end;
  DecodeParams params = sampled(60);
  params.on_token = [&](const TokenEvent& event) {
    if (!at_first_end.empty() || narrow.crowd[event.index].length() < 20 + 60) return;
    for (const Branch& branch : narrow.crowd) at_first_end.push_back(rows[branch.id()]);
  };
  narrow.session.decode(narrow.crowd, params);
  for (const std::size_t low : {4u, 5u}) {
    // Both have waited for 8 steps in the same one, and one row is theirs.
    EXPECT_GE(longest[narrow.crowd[low].id()], kPatience);
    EXPECT_LE(longest[narrow.crowd[low].id()], kPatience + 1);
    EXPECT_GE(at_first_end[low], 5);
    EXPECT_LE(at_first_end[low], 8);
  }
  for (std::size_t high = 0; high < 4; ++high) {
    EXPECT_LE(longest[narrow.crowd[high].id()], 2);
  }
}

TEST(Turns, BranchesThatShareAPrefixGoTogether) {
  // Two prompts, whose forks take turns in the span.
  Crowd narrow(4, 4);
  Branch other = narrow.session.prefill(Random(7).tokens(40, 256));
  std::vector<Branch> mixed;
  for (Branch& branch : narrow.crowd) {
    mixed.push_back(std::move(branch));
    mixed.push_back(other.fork());
  }
  for (Branch& branch : mixed) branch.append(Tokens{1});
  std::vector<std::vector<BranchId>> steps;
  const EventSubscription events = narrow.engine.on_event(
      mask_of(EventKind::kStep),
      [&](const Event& event) { steps.emplace_back(event.ran.begin(), event.ran.end()); });
  narrow.session.decode(mixed, greedy(1));
  ASSERT_EQ(steps.size(), 2u);
  for (const std::vector<BranchId>& ran : steps) {
    ASSERT_EQ(ran.size(), 4u);
    std::map<BranchId, int> families;
    for (const Branch& branch : mixed) {
      if (std::ranges::count(ran, branch.id()) > 0) ++families[branch.parent()];
    }
    EXPECT_EQ(families.size(), 1u);
  }
}

TEST(Turns, TokensAreToldInTheOrderOfTheSpanWhateverThePriorities) {
  Crowd wide(512, 6);
  wide.crowd[4].set_priority(3);
  wide.crowd[2].set_priority(1);
  std::vector<std::size_t> told;
  DecodeParams params = sampled(2);
  params.on_token = [&](const TokenEvent& event) { told.push_back(event.index); };
  wide.session.decode(wide.crowd, params);
  EXPECT_EQ(told, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5}));
}

TEST(Turns, OfExpansionComeByPriority) {
  Crowd wide(512, 3);
  for (std::size_t i = 0; i < 3; ++i) wide.crowd[i].append(Tokens{static_cast<Token>(i)});
  wide.crowd[2].set_priority(1);
  core_of(wide.session)->options.budget.tokens = wide.session.stats().tokens_computed + 1;
  const auto children = wide.session.expand(wide.crowd, {.top = 2});
  EXPECT_EQ(children[0].size(), 0u);
  EXPECT_EQ(children[1].size(), 0u);
  EXPECT_EQ(children[2].size(), 2u);
  EXPECT_EQ(wide.crowd[0].finish(), Finish::kBudget);
}

}  // namespace
}  // namespace dendrite
