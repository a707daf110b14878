// The strategy itself, with steps and judgements from a script over a real engine.
#include "dendrite/search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "search/search_support.h"

namespace dendrite {
namespace {

using test::load;
using test::path_of;

class TreeOfThoughtsTest : public test::ScriptedSearch {
 protected:
  TreeOfThoughts scripted(int children) { return script<TreeOfThoughts>(children); }
};

TEST_F(TreeOfThoughtsTest, KeepsTheBestOfEachDepth) {
  values = {{"a", 1},    {"b", 5},    {"c", 3},  {"ba", 0.1}, {"bb", 0.5},
            {"bc", 0.2}, {"ca", 0.9}, {"cb", 0}, {"cc", 0.4}};
  TreeOfThoughts strategy = scripted(3);
  strategy.depth = 2;
  strategy.width = 2;
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_FALSE(result.solved);
  EXPECT_EQ(result.finish, Finish::kStop);
  EXPECT_EQ(kept, (std::vector<std::string>{"b", "c", "bb", "ca"}));
  // No solution was asked for: the best at the last depth is the result.
  EXPECT_EQ(path_of(result.branch), "ca");
  ASSERT_EQ(result.path.size(), 2u);
  EXPECT_EQ(result.path[0].text, "c");
  EXPECT_EQ(result.path[1].text, "a");
  ASSERT_EQ(result.tree.size(), 3u + 6u);
  EXPECT_EQ(events[SearchEvent::Kind::kProposed], 9);
  EXPECT_EQ(events[SearchEvent::Kind::kJudged], 9);
  EXPECT_EQ(events[SearchEvent::Kind::kPruned], 5);
  for (const ThoughtRecord& record : result.tree) {
    EXPECT_EQ(record.text.size(), 1u);
    EXPECT_TRUE(record.depth == 1 || record.depth == 2);
  }
}

TEST_F(TreeOfThoughtsTest, TracesTheSolutionFromItsFirstStep) {
  values = {{"a", 1}, {"b", 2}, {"ab", 7}, {"ba", 6}, {"aba", 1}, {"bab", 2}};
  TreeOfThoughts strategy = scripted(2);
  strategy.depth = 5;
  strategy.width = 2;
  strategy.solved = [](const Branch& branch, const std::string&) {
    return path_of(branch) == "aba";
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  ASSERT_TRUE(result.solved);
  EXPECT_EQ(result.finish, Finish::kStop);
  EXPECT_EQ(path_of(result.branch), "aba");
  ASSERT_EQ(result.path.size(), 3u);
  EXPECT_EQ(result.path[0].text, "a");
  EXPECT_EQ(result.path[1].text, "b");
  EXPECT_EQ(result.path[2].text, "a");
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(result.path[static_cast<std::size_t>(i)].depth, i + 1);
    EXPECT_TRUE(result.path[static_cast<std::size_t>(i)].kept);
  }
  EXPECT_EQ(result.path[1].parent, result.path[0].node);
  EXPECT_EQ(result.path[2].parent, result.path[1].node);
  EXPECT_EQ(result.path[2].branch_id, result.branch.id());
  EXPECT_EQ(events[SearchEvent::Kind::kSolved], 1);
}

TEST_F(TreeOfThoughtsTest, PruningFreesPages) {
  TreeOfThoughts strategy = scripted(6);
  strategy.depth = 3;
  strategy.width = 2;
  std::int64_t most = 0;
  std::vector<std::int64_t> at_proposal;
  const auto propose = strategy.steps.propose;
  strategy.steps.propose = [&, propose](Session& s, std::span<Branch> nodes) {
    at_proposal.push_back(s.stats().pages_used);
    auto out = propose(s, nodes);
    for (auto& some : out.children) {
      for (Branch& branch : some) branch.append(std::string(40, 'x'));  // pages of their own
      s.score_tokens(some, {{1}});
      most = std::max(most, s.stats().pages_used);
    }
    return out;
  };
  strategy.steps.judgement.judge = {};
  SearchResult result = session.run_tree(strategy, "start\n");
  ASSERT_EQ(at_proposal.size(), 3u);
  EXPECT_GT(most, at_proposal[2] + 8 * 2);  // what was judged and thrown away is gone
  EXPECT_LE(at_proposal[1], at_proposal[0] + 2 * 4);
  result = SearchResult{};
  test::expect_all_pages_free(engine);
}

TEST_F(TreeOfThoughtsTest, StepsThatAreNotAcceptedAreNeverJudged) {
  TreeOfThoughts strategy = scripted(4);
  strategy.depth = 2;
  strategy.width = 10;
  strategy.steps.accept = [](const Branch&, const std::string& step) {
    return step != "b" && step != "d";
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(result.tree.size(), 2u + 4u);
  for (const ThoughtRecord& record : result.tree)
    EXPECT_TRUE(record.text == "a" || record.text == "c");
}

TEST_F(TreeOfThoughtsTest, EqualValuesKeepTheOrderOfProposal) {
  TreeOfThoughts strategy = scripted(4);
  strategy.depth = 1;
  strategy.width = 2;
  session.run_tree(strategy, "start\n");
  EXPECT_EQ(kept, (std::vector<std::string>{"a", "b"}));
}

TEST_F(TreeOfThoughtsTest, EndsWhenNothingIsLeftToDo) {
  TreeOfThoughts strategy = scripted(2);
  strategy.depth = 4;
  strategy.steps.accept = [](const Branch& branch, const std::string&) {
    return path_of(branch).size() < 2;
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_FALSE(result.solved);
  EXPECT_EQ(result.finish, Finish::kStop);
  EXPECT_EQ(result.tree.size(), 2u);
}

TEST_F(TreeOfThoughtsTest, CancelEndsItBetweenDepths) {
  TreeOfThoughts strategy = scripted(2);
  strategy.depth = 4;
  std::stop_source source;
  strategy.cancel = source.get_token();
  const auto event = strategy.on_event;
  strategy.on_event = [&](const SearchEvent& e) {
    event(e);
    if (e.thought->depth == 2) source.request_stop();
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(result.finish, Finish::kCancelled);
  EXPECT_FALSE(result.solved);
  for (const ThoughtRecord& record : result.tree) EXPECT_LE(record.depth, 2);
}

TEST_F(TreeOfThoughtsTest, ABudgetThatRunsOutIsToldAsSuch) {
  for (const std::int64_t tokens : {3, 8, 30}) {  // in the prefill, at once after it, in the steps
    Session poor(engine, {.budget = {.tokens = tokens}});
    TreeOfThoughts strategy;  // the default proposer and judge
    strategy.depth = 3;
    const SearchResult result = poor.run_tree(strategy, "start\n");
    EXPECT_FALSE(result.solved);
    EXPECT_EQ(result.finish, Finish::kBudget) << tokens;
    EXPECT_LE(poor.stats().tokens_computed, tokens);
  }
  test::expect_all_pages_free(engine);
}

TEST_F(TreeOfThoughtsTest, FunctionsThatDoNotAnswerForEachBranchAreAnError) {
  TreeOfThoughts strategy = scripted(2);
  strategy.steps.judgement.judge = [](Session&, std::span<Branch>) {
    return std::vector<double>{1.0};
  };
  EXPECT_ERROR(session.run_tree(strategy, "start\n"), "judge returned 1 values; expected 2");
  strategy.steps.propose = [](Session&, std::span<Branch>) { return Proposals(); };
  EXPECT_ERROR(session.run_tree(strategy, "start\n"),
               "propose returned 0 lists of steps; expected 1");
}

TEST_F(TreeOfThoughtsTest, ValuesThatAreNoNumbersRankLast) {
  values = {{"a", std::nan("")}, {"b", -5}, {"c", std::nan("")}, {"d", -7}};
  TreeOfThoughts strategy = scripted(4);
  strategy.depth = 1;
  strategy.width = 2;
  session.run_tree(strategy, "start\n");
  EXPECT_EQ(kept, (std::vector<std::string>{"b", "d"}));
}

TEST_F(TreeOfThoughtsTest, TheDefaultProposerSamplesDistinctLines) {
  // A model that writes short lines of a few letters.
  const Engine shipped = load("dendrite-24");
  Session s(shipped, {.seed = 1});
  TreeOfThoughts strategy;
  strategy.depth = 1;
  strategy.width = 100;
  strategy.steps.candidates = 20;
  const SearchResult result = s.run_tree(strategy, "P 24: 4 6 7 9\n");
  EXPECT_GT(result.tree.size(), 3u);
  EXPECT_LE(s.stats().steps, 40);  // a line has at most 20 tokens or so: all in one batch
  EXPECT_EQ(s.stats().tokens_redundant, 0);
  std::set<std::string> texts;
  for (const ThoughtRecord& record : result.tree) {
    EXPECT_EQ(record.text.find('\n'), std::string::npos);
    EXPECT_TRUE(texts.insert(record.text).second) << "twice: " << record.text;
    EXPECT_LT(record.value, 0);  // a mean log-prob
  }
}

}  // namespace
}  // namespace dendrite
