// Drafts from what a session has said.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "draft/suffix_drafter.h"

namespace dendrite {
namespace {

History::Place add(History& history, const std::string& text,
                   History::Place from = History::kStart) {
  for (const char c : text) from = history.add(from, c);
  return from;
}

constexpr DraftLimits kLimits{16, 16, 0.1};

/// The path of the first nodes.
std::string spine(const std::vector<DraftNode>& nodes) {
  std::string out;
  std::int32_t at = -1;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].parent != at) continue;
    out += static_cast<char>(nodes[i].token);
    at = static_cast<std::int32_t>(i);
  }
  return out;
}

TEST(HistoryTest, FindsWhereTheSameTokensWere) {
  History history;
  const History::Place first = add(history, "the cat sat on the ");
  const History::Match match = history.find(first);
  EXPECT_EQ(match.level, 3U);  // "he "
  ASSERT_EQ(match.places.size(), 1U);
  std::vector<History::Next> next;
  history.next_of(match.places[0], next);
  ASSERT_EQ(next.size(), 1U);
  EXPECT_EQ(next[0].token, 'c');
}

TEST(HistoryTest, PrefersTheLongestAndTheLatest) {
  History history;
  add(history, "abcdefghijklmno1");
  add(history, "xxxxxxghijklmno2");
  add(history, "yyyyyyyyyyyymno3");
  add(history, "zzzzzzzzzzzzmno4");
  const auto first_after = [&](const std::string& text) {
    const History::Match match = history.find(add(history, text));
    std::vector<History::Next> next;
    history.next_of(match.places.at(0), next);
    return std::pair(match.level, static_cast<char>(next.at(0).token));
  };
  EXPECT_EQ(first_after("Qdefghijklmno"), std::pair(std::size_t{1}, '1'));
  EXPECT_EQ(first_after("Rxijklmno"), std::pair(std::size_t{2}, '2'));
  EXPECT_EQ(first_after("Smno"), std::pair(std::size_t{3}, '4'));
  EXPECT_TRUE(history.find(add(history, "no")).places.empty());  // too short for any
  const History::Place same = add(history, "abc");
  EXPECT_EQ(history.find(same).places, std::vector{same});  // where another text goes on
  EXPECT_EQ(history.find(same).level, 0U);
}

TEST(HistoryTest, EqualTextsAreOne) {
  History history;
  const History::Place first = add(history, "a prompt");
  EXPECT_EQ(add(history, "a prompt"), first);
  EXPECT_EQ(history.size(), 8);
  const std::uint32_t epoch = history.epoch();
  history.clear();
  EXPECT_EQ(history.size(), 0);
  EXPECT_NE(history.epoch(), epoch);
}

TEST(SuffixDrafterTest, GoesOnAsTheOthersDid) {
  SuffixDrafter drafter;
  add(drafter.history, "one two three four five");
  const History::Place at = add(drafter.history, "and one two");
  const Draft draft = drafter.propose(at, kLimits);
  EXPECT_EQ(spine(draft.nodes).substr(0, 4), " thr");
}

TEST(SuffixDrafterTest, BranchesWhereTheyParted) {
  SuffixDrafter drafter;
  const History::Place prompt = add(drafter.history, "the answer: ");
  for (int i = 0; i < 3; ++i) add(drafter.history, "12", prompt);
  add(drafter.history, "7", prompt);
  const History::Place at = add(drafter.history, "and then the answer: ");
  const Draft draft = drafter.propose(at, kLimits);
  ASSERT_EQ(draft.nodes.size(), 3U);
  EXPECT_EQ(draft.nodes[0].token, '1');
  EXPECT_EQ(draft.nodes[0].parent, -1);
  const auto other = std::ranges::find(draft.nodes, Token{'7'}, &DraftNode::token);
  ASSERT_NE(other, draft.nodes.end());
  EXPECT_EQ(other->parent, -1);
  EXPECT_LT(other->score, draft.nodes[0].score);
}

TEST(SuffixDrafterTest, LearnsNotToAndForgives) {
  SuffixDrafter drafter;
  add(drafter.history, "abcabcabcabcabcabc");
  const History::Place at = add(drafter.history, "xabc");
  Draft draft = drafter.propose(at, kLimits);
  ASSERT_FALSE(draft.nodes.empty());
  int tests = 0;
  for (; !draft.nodes.empty() && tests < 1000; ++tests) {
    drafter.learn(draft, -1, false);
    draft = drafter.propose(at, {16, 16, 0.25});
  }
  EXPECT_LT(tests, 20);
  int without = 0;
  while (drafter.propose(at, {16, 16, 0.25}).nodes.empty() && without < 10000) ++without;
  EXPECT_GT(without, 10);
  EXPECT_LT(without, 1000);
}

TEST(SuffixDrafterTest, TrustsWhatComesTrue) {
  SuffixDrafter drafter;
  add(drafter.history, "abcabcabcabcabcabc");
  const History::Place at = add(drafter.history, "xabc");
  const std::size_t before = drafter.propose(at, {64, 64, 0.25}).nodes.size();
  for (int i = 0; i < 200; ++i) drafter.learn(drafter.propose(at, kLimits), -1, true);
  EXPECT_GT(drafter.propose(at, {64, 64, 0.25}).nodes.size(), before);
}

}  // namespace
}  // namespace dendrite
