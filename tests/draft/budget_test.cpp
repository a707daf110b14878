// Who gets rows among the drafts of a step, and how many there are.
#include "draft/draft_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace dendrite {
namespace {

using Pick = DraftBudget::Pick;

/// A chain whose tokens come with these chances, each where the one before came.
std::vector<DraftNode> chain(std::vector<double> chances) {
  std::vector<DraftNode> nodes;
  double score = 0;
  for (const double chance : chances) {
    const auto place = static_cast<std::int32_t>(nodes.size());
    score += std::log(chance);
    nodes.push_back({place, place - 1, place + 1, score, 0});
  }
  return nodes;
}

/// One that knows what turns without drafts take.
DraftBudget experienced() {
  DraftBudget budget;
  for (const std::int64_t lanes : {1, 2, 3}) budget.record_plain(lanes, 10);
  return budget;
}

/// Steps of `flat` rows take 10 ms, each row beyond `row_ms` more; nobody knows of more than
/// `known`.
DraftBudget::Step step_of(std::int64_t lanes, std::int64_t flat, double row_ms,
                          std::int64_t known = 1000) {
  return {.rows = lanes,
          .lanes = lanes,
          .value = static_cast<double>(lanes),
          .step_ms = [=](std::int64_t rows) -> std::optional<double> {
            if (rows > known) return std::nullopt;
            return 10 + row_ms * static_cast<double>(std::max<std::int64_t>(0, rows - flat));
          }};
}

std::vector<std::pair<std::size_t, std::int32_t>> places(const std::vector<Pick>& picks) {
  std::vector<std::pair<std::size_t, std::int32_t>> out;
  for (const Pick& pick : picks) out.emplace_back(pick.claim, pick.node);
  return out;
}

TEST(DraftBudgetTest, TakesWhatIsFree) {
  const std::vector<DraftNode> nodes = chain({0.5, 0.5, 0.5, 0.5});
  const DraftBudget::Claim claim{nodes};
  EXPECT_EQ(experienced().choose({&claim, 1}, step_of(1, 100, 1)).size(), 4u);
  EXPECT_EQ(experienced().choose({&claim, 1}, step_of(1, 3, 100)).size(), 2u);
}

TEST(DraftBudgetTest, TakesNothingWhereTimesAreNotKnown) {
  const std::vector<DraftNode> nodes = chain({0.9, 0.9, 0.9, 0.9});
  const DraftBudget::Claim claim{nodes};
  EXPECT_TRUE(DraftBudget().choose({&claim, 1}, step_of(1, 100, 1)).empty());
  EXPECT_TRUE(experienced().choose({&claim, 1}, step_of(1, 100, 1, 0)).empty());
  EXPECT_EQ(experienced().choose({&claim, 1}, step_of(1, 100, 1, 3)).size(), 2u);
}

TEST(DraftBudgetTest, SharesOneBudgetByChanceAndValue) {
  const std::vector<DraftNode> likely = chain({0.9, 0.9, 0.5});
  const std::vector<DraftNode> unlikely = chain({0.6, 0.3});
  const std::vector<DraftBudget::Claim> equal = {{unlikely, 1}, {likely, 1}};
  // (Chances of whole paths: 0.6, 0.18 and 0.9, 0.81, 0.405.)
  const auto picks = experienced().choose(equal, step_of(2, 5, 100));
  EXPECT_EQ(places(picks),
            (std::vector<std::pair<std::size_t, std::int32_t>>{{1, 0}, {1, 1}, {0, 0}}));
  // A branch that promises a tenth gets what is left.
  const std::vector<DraftBudget::Claim> unequal = {{unlikely, 1}, {likely, 0.1}};
  const auto others = experienced().choose(unequal, step_of(2, 5, 100));
  EXPECT_EQ(places(others),
            (std::vector<std::pair<std::size_t, std::int32_t>>{{0, 0}, {0, 1}, {1, 0}}));
}

TEST(DraftBudgetTest, NoNumberOfRowsGivesMoreATime) {
  std::mt19937 random(3);
  const auto uniform = [&] { return static_cast<double>(random() % 1000 + 1) / 1001; };
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<std::vector<DraftNode>> drafts(random() % 4 + 1);
    std::vector<DraftBudget::Claim> claims;
    std::vector<double> values;
    for (std::vector<DraftNode>& nodes : drafts) {
      std::vector<double> chances(random() % 8);
      for (double& chance : chances) chance = uniform();
      nodes = chain(chances);
      claims.push_back({nodes, uniform()});
      for (const DraftNode& node : nodes) {
        values.push_back(claims.back().value * std::exp(node.score));
      }
    }
    // A staircase, as tiles and graphs make it.
    std::vector<double> ms = {10};
    while (ms.size() < 64) ms.push_back(ms.back() + (random() % 4 == 0 ? 4 * uniform() : 0));
    DraftBudget::Step step{.rows = 3, .lanes = 3, .value = 2.5, .step_ms = [&](std::int64_t rows) {
                             return std::optional(ms[static_cast<std::size_t>(rows)]);
                           }};
    const std::vector<Pick> picks = experienced().choose(claims, step);
    std::ranges::sort(values, std::greater{});
    double best = 1.02 * step.value / 10;  // (a plain turn's time, which is the least)
    double value = step.value;
    std::size_t count = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      value += values[i];
      if (value / ms[4 + i] > best) {
        best = value / ms[4 + i];
        count = i + 1;
      }
    }
    ASSERT_EQ(picks.size(), count) << trial;
    std::vector<std::int32_t> next(claims.size());
    for (const Pick& pick : picks) ASSERT_EQ(pick.node, next[pick.claim]++) << trial;
  }
}

/// Drafts that say 0.9, and come as often as `comes`: time by that of plain turns.
double time_of(double comes, double row_ms) {
  DraftBudget budget;
  std::mt19937 random(5);
  const std::vector<DraftNode> nodes = chain({0.9, 0.9, 0.9, 0.9});
  const DraftBudget::Claim claim{nodes};
  const DraftBudget::Step step = step_of(1, 1, row_ms);
  double ms = 0;
  std::int64_t made = 0;
  while (made < 4000) {
    const auto rows = static_cast<std::int64_t>(budget.choose({&claim, 1}, step).size());
    const double took = *step.step_ms(1 + rows);
    ms += took;
    std::int64_t taken = 0;
    while (taken < rows && static_cast<double>(random() % 1000) < 1000 * comes) ++taken;
    made += 1 + taken;
    if (rows == 0) {
      budget.record_plain(1, took);
    } else {
      budget.record(1, static_cast<double>(1 + taken), took, took);
    }
  }
  return ms / (10 * static_cast<double>(made));
}

TEST(DraftBudgetTest, LosesLittleByDraftsThatAreWrong) {
  for (const double row_ms : {0.5, 2.0, 5.0}) {
    EXPECT_LT(time_of(0, row_ms), 1.02) << row_ms;
    EXPECT_LT(time_of(0.1, row_ms), 1.02) << row_ms;
  }
  EXPECT_LT(time_of(0.9, 2), 0.6);
}

TEST(DraftBudgetTest, NodesThatStayHaveTheirParents) {
  std::vector<DraftNode> nodes = chain({0.9, 0.9, 0.9});
  nodes.push_back({7, 0, 2, -1, 0});
  nodes.push_back({8, 3, 3, -2, 0});
  keep_nodes(nodes, {true, false, false, true, true});
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[0].parent, -1);
  EXPECT_EQ(nodes[1].parent, 0);
  EXPECT_EQ(nodes[1].token, 7);
  EXPECT_EQ(nodes[2].parent, 1);
  EXPECT_EQ(nodes[2].token, 8);
}

}  // namespace
}  // namespace dendrite
