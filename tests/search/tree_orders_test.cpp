// Depth-first and best-first Tree-of-Thoughts.
#include <gtest/gtest.h>

#include <cmath>

#include "search/search_support.h"

namespace dendrite {
namespace {

using test::path_of;
using test::Paths;
using test::Transcript;

using DepthFirstTest = test::ScriptedSearch;
using BestFirstTest = test::ScriptedSearch;

TEST_F(DepthFirstTest, EntersTheBestChildFirstAndComesBack) {
  values = {{"a", 1}, {"b", 2}, {"aa", 5}, {"ab", 6}, {"ba", 3}, {"bb", 4}};
  DepthFirst strategy = script<DepthFirst>(2);
  strategy.depth = 2;
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(kept, (Paths{"b", "bb", "ba", "a", "ab", "aa"}));
  // A leaf goes when a better one is there or was; an inner thought when nothing of it is left.
  EXPECT_EQ(pruned, (Paths{"ba", "b", "bb", "aa", "a"}));
  EXPECT_EQ(path_of(result.branch), "ab");
  EXPECT_EQ(result.path.size(), 2u);
  EXPECT_EQ(result.tree.size(), 6u);
  EXPECT_EQ(result.finish, Finish::kStop);
  EXPECT_EQ(session.stats().branches_live, 1);
}

TEST_F(DepthFirstTest, EndsAtTheSolutionWithoutOpeningMore) {
  values = {{"a", 1}, {"b", 2}, {"ba", 2}, {"bb", 3}};
  DepthFirst strategy = script<DepthFirst>(2);
  strategy.depth = 3;
  strategy.solved = [](const Branch& branch, const std::string&) {
    return path_of(branch) == "bba";
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_TRUE(result.solved);
  EXPECT_EQ(kept, (Paths{"b", "bb", "bba"}));
  EXPECT_EQ(judged, (Paths{"a", "b", "ba", "bb", "bba", "bbb"}));
  EXPECT_EQ(path_of(result.branch), "bba");
}

TEST_F(DepthFirstTest, WidthThresholdAndNodesBoundIt) {
  values = {{"a", 1}, {"b", 2}, {"c", 3}, {"ca", 0.4}, {"cb", 0.6}, {"ba", 0.7}, {"bb", 0.1}};
  DepthFirst strategy = script<DepthFirst>(3);
  strategy.depth = 2;
  strategy.width = 2;
  strategy.threshold = 0.5;
  session.run_tree(strategy, "start\n");
  EXPECT_EQ(kept, (Paths{"c", "cb", "b", "ba"}));
  kept.clear();
  strategy.max_nodes = 3;
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(kept, (Paths{"c", "cb", "b"}));
  EXPECT_EQ(path_of(result.branch), "cb");
}

TEST_F(BestFirstTest, ExpandsTheBestOfTheWholeFrontier) {
  values = {{"a", 5},  {"b", 3},   {"aa", 1},  {"ab", 2},   {"ba", 4},
            {"bb", 0}, {"baa", 9}, {"bab", 8}, {"aba", 10}, {"abb", 0}};
  BestFirst strategy = script<BestFirst>(2);
  strategy.depth = 3;
  const SearchResult result = session.run_tree(strategy, "start\n");
  // After a (5) its children (1, 2) wait behind b (3), whose child ba (4) comes first.
  EXPECT_EQ(kept, (Paths{"a", "b", "ba", "ab", "aa", "bb", "aba"}));
  EXPECT_EQ(path_of(result.branch), "aba");
  EXPECT_EQ(session.stats().branches_live, 1);
}

TEST_F(BestFirstTest, ABatchTakesTheBestTogetherAndTiesGoByProposal) {
  values = {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 2}};
  BestFirst strategy = script<BestFirst>(4);
  strategy.depth = 2;
  strategy.batch = 2;
  strategy.max_expansions = 4;
  strategy.max_frontier = 3;
  std::vector<std::size_t> batches;
  const auto propose = strategy.steps.propose;
  strategy.steps.propose = [&](Session& s, std::span<Branch> nodes) {
    batches.push_back(nodes.size());
    return propose(s, nodes);
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(batches, (std::vector<std::size_t>{1, 2, 1}));
  EXPECT_EQ(kept, (Paths{"d", "a", "b", "da"}));  // the last is the best leaf
  EXPECT_EQ(pruned.front(), "c");                 // beyond max_frontier
  EXPECT_FALSE(result.solved);
}

TEST_F(BestFirstTest, EndsAtTheBestSolutionOfAnExpansion) {
  values = {{"a", 1}, {"b", 2}, {"c", 3}};
  BestFirst strategy = script<BestFirst>(3);
  strategy.solved = [](const Branch& branch, const std::string&) {
    return path_of(branch) == "a" || path_of(branch) == "b";
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_TRUE(result.solved);
  EXPECT_EQ(path_of(result.branch), "b");
}

TEST_F(BestFirstTest, RefusesWhatItCannotDo) {
  BestFirst strategy = script<BestFirst>(2);
  strategy.batch = 0;
  EXPECT_ERROR(session.run_tree(strategy, "start\n"), "batch is 0; expected >= 1");
  strategy = script<BestFirst>(2);
  strategy.steps.judgement.evaluate = [](const Candidate&) { return 0.0; };
  EXPECT_ERROR(session.run_tree(strategy, "start\n"), "judge and evaluate are both set");
  strategy = script<BestFirst>(2);
  strategy.steps.candidates = 0;
  EXPECT_ERROR(session.run_tree(strategy, "start\n"), "candidates is 0; expected >= 1");
  DepthFirst depth_first = script<DepthFirst>(2);
  depth_first.steps.judgement.judge = [](Session&, std::span<Branch>) {
    return std::vector<double>(3);
  };
  EXPECT_ERROR(session.run_tree(depth_first, "start\n"),
               "depth-first: judge returned 3 values; expected 2");
}

/// With the model's own steps and judgements, for all three orders.
template <typename Strategy>
class TreeOrders : public ::testing::Test {};
using Orders = ::testing::Types<TreeOfThoughts, DepthFirst, BestFirst>;
TYPED_TEST_SUITE(TreeOrders, Orders);

TYPED_TEST(TreeOrders, TellTheSameWhateverTheThreadsAndPages) {
  std::string expected;
  for (const EngineOptions& options :
       {EngineOptions{.threads = 1}, EngineOptions{.threads = 3, .page_tokens = 8},
        EngineOptions{.threads = 2, .kv_tokens = 640}}) {
    Engine engine = test::load("llama2", options);
    Session session(engine, {.seed = 5});
    Transcript transcript;
    TypeParam strategy;
    strategy.depth = 3;
    strategy.steps.propose = [](Session& s, std::span<Branch> nodes) {
      Proposals out;
      for (Branch& node : nodes) out.children.push_back(node.fork(4));
      std::vector<Branch> all;
      for (auto& some : out.children) {
        // No two draw the same: that would be a redundant row.
        for (Token i = 0; i < 4; ++i) some[static_cast<std::size_t>(i)].append({{Token{'a'} + i}});
        std::ranges::move(some, std::back_inserter(all));
      }
      s.decode(all, {.max_tokens = 9, .temperature = 1.0, .ignore_eos = true});
      for (std::size_t i = 0; i < all.size(); ++i) out.children[i / 4][i % 4] = std::move(all[i]);
      return out;
    };
    strategy.on_event = transcript.reader();
    SearchResult result = session.run_tree(strategy, "start\n");
    EXPECT_EQ(result.path.size(), 3u);
    EXPECT_EQ(session.stats().tokens_redundant, 0);
    if (expected.empty()) expected = transcript.with(result);
    EXPECT_EQ(transcript.with(result), expected);
    result = {};
    test::expect_all_pages_free(engine);
  }
}

TYPED_TEST(TreeOrders, EndWithTheBudgetAndWithCancellation) {
  Engine engine = test::load("llama2", {.prefix_index = false});
  for (const std::int64_t tokens : {3, 8, 40}) {
    Session poor(engine, {.budget = {.tokens = tokens}});
    TypeParam strategy;
    const SearchResult result = poor.run_tree(strategy, "start\n");
    EXPECT_EQ(result.finish, Finish::kBudget);
    EXPECT_LE(poor.stats().tokens_computed, tokens);
  }
  Session session(engine);
  TypeParam strategy;
  strategy.steps.propose = test::letters(2);
  strategy.depth = 5;
  std::stop_source source;
  strategy.cancel = source.get_token();
  strategy.on_event = [&](const SearchEvent& event) {
    if (event.thought->depth == 2) source.request_stop();
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(result.finish, Finish::kCancelled);
  for (const ThoughtRecord& record : result.tree) EXPECT_LE(record.depth, 3);
}

}  // namespace
}  // namespace dendrite
