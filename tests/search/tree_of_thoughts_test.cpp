// The strategy itself, with steps and judgements from a script over a real engine.
#include "dendrite/search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::load;
using test::logits_of;
using test::Tokens;

class TreeOfThoughtsTest : public ::testing::Test {
 protected:
  /// Proposes "PATHa\n", "PATHb\n", ... and judges by a table of paths: "ab" is the second step of
  /// the first.
  TreeOfThoughts scripted(int children) {
    TreeOfThoughts strategy;
    strategy.propose = [children](Session&, std::span<Branch> nodes) {
      Proposals out;
      for (Branch& node : nodes) {
        std::vector<Branch>& mine = out.children.emplace_back();
        for (int i = 0; i < children; ++i) {
          mine.push_back(node.fork());
          mine.back().append(std::string(1, static_cast<char>('a' + i)) + "\n");
        }
      }
      return out;
    };
    strategy.judge = [this](Session&, std::span<Branch> candidates) {
      std::vector<double> out;
      for (const Branch& branch : candidates) out.push_back(values[path_of(branch)]);
      return out;
    };
    strategy.on_event = [this](const SearchEvent& event) {
      ++events[event.kind];
      if (event.kind == SearchEvent::Kind::kKept) kept.push_back(path_of(event.thought->branch));
    };
    return strategy;
  }

  static std::string path_of(const Branch& branch) {
    std::string path = branch.text();
    std::erase(path, '\n');
    return path;
  }

  Engine engine = load("llama2", {.prefix_index = false});
  Session session{engine};
  std::map<std::string, double> values;
  std::map<SearchEvent::Kind, int> events;
  std::vector<std::string> kept;
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
  EXPECT_EQ(result.path[1].parent, result.path[0].branch);
  EXPECT_EQ(result.path[2].parent, result.path[1].branch);
  EXPECT_EQ(result.path[2].branch, result.branch.id());
  EXPECT_EQ(events[SearchEvent::Kind::kSolved], 1);
}

TEST_F(TreeOfThoughtsTest, PruningFreesPages) {
  TreeOfThoughts strategy = scripted(6);
  strategy.depth = 3;
  strategy.width = 2;
  std::int64_t most = 0;
  std::vector<std::int64_t> at_proposal;
  const auto propose = strategy.propose;
  strategy.propose = [&, propose](Session& s, std::span<Branch> nodes) {
    at_proposal.push_back(s.stats().pages_used);
    auto out = propose(s, nodes);
    for (auto& some : out.children) {
      for (Branch& branch : some) branch.append(std::string(40, 'x'));  // pages of their own
      s.score_tokens(some, {{1}});
      most = std::max(most, s.stats().pages_used);
    }
    return out;
  };
  strategy.judge = {};
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
  strategy.accept = [](const Branch&, const std::string& step) {
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
  strategy.accept = [](const Branch& branch, const std::string&) {
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
  strategy.judge = [](Session&, std::span<Branch>) { return std::vector<double>{1.0}; };
  EXPECT_ERROR(session.run_tree(strategy, "start\n"), "judge returned 1 values; expected 2");
  strategy.propose = [](Session&, std::span<Branch>) { return Proposals(); };
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
  strategy.candidates = 20;
  const SearchResult result = s.run_tree(strategy, "P 24: 4 6 7 9\n");
  EXPECT_GT(result.tree.size(), 3u);
  std::set<std::string> texts;
  for (const ThoughtRecord& record : result.tree) {
    EXPECT_EQ(record.text.find('\n'), std::string::npos);
    EXPECT_TRUE(texts.insert(record.text).second) << "twice: " << record.text;
    EXPECT_LT(record.value, 0);  // a mean log-prob
  }
}

TEST_F(TreeOfThoughtsTest, ExpandUntilFindsEveryContinuationAboveTheBar) {
  const Engine shipped = load("dendrite-24");
  Session s(shipped);
  const Token newline = shipped.encode("\n", false).back();
  Branch root = s.prefill("P 24: 4 6 7 9\n");
  std::vector<Branch> nodes = root.fork(3);
  nodes[1].append("9-6=3 | 3 4 7\n");
  // What a node has gone through does not count against its continuations.
  s.decode(nodes[2], {.max_tokens = 2, .temperature = 3.0});
  ASSERT_LT(nodes[2].logprob(), -1);
  const double bar = 0.06;
  const auto found = expand_until(s, nodes, newline, bar, 40).children;
  ASSERT_EQ(found.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_GE(found[i].size(), 1u);
    double mass = 0;
    std::set<std::string> texts;
    for (const Branch& branch : found[i]) {
      const Tokens all = branch.tokens();
      EXPECT_EQ(all.back(), newline);
      const Tokens rest(all.begin() + nodes[i].length(), all.end());
      EXPECT_EQ(std::count(rest.begin(), rest.end(), newline), 1);
      const double logprob = nodes[i].score_tokens({rest})[0].logprob;
      EXPECT_NEAR(branch.logprob() - nodes[i].logprob(), logprob, 1e-6);
      EXPECT_GE(logprob, std::log(bar) - 1e-6);
      mass += std::exp(logprob);
      EXPECT_TRUE(texts.insert(branch.text()).second);
    }
    EXPECT_LE(mass, 1 + 1e-5);
    // What the model samples is among them, unless it is less likely than the bar.
    std::vector<Branch> samples = nodes[i].fork(30);
    const auto lines =
        s.decode(samples, {.max_tokens = 40, .stop_tokens = {newline}, .temperature = 1.0});
    for (std::size_t k = 0; k < lines.size(); ++k) {
      if (lines[k].finish != Finish::kStop) continue;
      if (nodes[i].score_tokens({lines[k].ids})[0].logprob < std::log(bar) + 1e-6) continue;
      EXPECT_TRUE(texts.contains(samples[k].text())) << samples[k].text();
    }
  }
}

}  // namespace
}  // namespace dendrite
