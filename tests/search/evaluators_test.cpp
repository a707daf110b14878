// Evaluators in threads of their own, and speculation past them: the same search, told the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "search/search_support.h"

namespace dendrite {
namespace {

using test::path_of;
using test::Transcript;

/// A value that has nothing to do with what the model thinks.
double value_of(const std::string& text) {
  return static_cast<double>(std::hash<std::string>()(text) % 1000) / 1000;
}

struct Outcome {
  std::string told;
  std::int64_t tokens = 0;
  std::int64_t evaluations = 0;
};

/// A search by the model's own samples, judged by an evaluator.
template <typename Strategy>
Outcome search(int threads, int groups, int speculate, bool slow) {
  const Engine engine = test::load("dendrite-24", {.threads = 2});
  Outcome outcome;
  {
    Session session(engine, {.seed = 11});
    Transcript transcript;
    std::atomic<std::int64_t> calls = 0;
    Strategy strategy;
    strategy.depth = 3;
    strategy.steps.candidates = 5;
    strategy.steps.propose_groups = groups;
    strategy.steps.speculate = speculate;
    strategy.steps.judgement.evaluator_threads = threads;
    strategy.steps.judgement.evaluate = [&](const Candidate& candidate) {
      // Some answers come late, and not in the order of the questions.
      if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(2 * (calls % 3)));
      ++calls;
      return value_of(candidate.history + candidate.text);
    };
    strategy.on_event = transcript.reader();
    SearchResult result = session.run_tree(strategy, "P 24: 4 6 7 9\n");
    outcome.told = transcript.with(result);
    EXPECT_EQ(session.stats().tokens_redundant, 0);
    outcome.tokens = session.stats().tokens_computed;
    outcome.evaluations = calls;
  }
  test::expect_all_pages_free(engine);
  return outcome;
}

template <typename Strategy>
class EvaluatorsOf : public ::testing::Test {};
using Strategies = ::testing::Types<TreeOfThoughts, DepthFirst, BestFirst, Mcts>;
TYPED_TEST_SUITE(EvaluatorsOf, Strategies);

TYPED_TEST(EvaluatorsOf, NeitherThreadsNorSpeculationChangeTheSearch) {
  const Outcome alone = search<TypeParam>(0, 1, 0, false);
  const int settings[][3] = {{1, 1, 0}, {4, 3, 0}, {1, 3, 3}, {4, 1, 2}};
  for (const auto& [threads, groups, speculate] : settings) {
    const Outcome beside = search<TypeParam>(threads, groups, speculate, true);
    EXPECT_EQ(beside.told, alone.told) << threads << " " << groups << " " << speculate;
    EXPECT_EQ(beside.evaluations, alone.evaluations);
    if (speculate == 0) {
      EXPECT_EQ(beside.tokens, alone.tokens);
    }
  }
}

/// Whether it happened within a time in which it must have.
bool comes(const std::shared_future<void>& event) {
  return event.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
}

TEST(Evaluators, WorkWhileTheNextGroupIsProposed) {
  const Engine engine = test::load("llama2");
  Session session(engine);
  TreeOfThoughts strategy;
  strategy.depth = 2;
  strategy.steps.propose_groups = 2;
  std::promise<void> promise;
  const std::shared_future<void> second_group = promise.get_future().share();
  int proposed = 0;
  strategy.steps.propose = [&](Session& s, std::span<Branch> nodes) {
    if (++proposed == 3) promise.set_value();  // depth 1, first group, second group
    return test::letters(2)(s, nodes);
  };
  std::atomic<int> in_time = 0;
  strategy.steps.judgement.evaluator_threads = 1;
  strategy.steps.judgement.evaluate = [&](const Candidate& candidate) {
    // The first of depth 2 is answered only when the second group is being proposed.
    if (candidate.depth == 2 && candidate.history == "a\na\n") in_time += comes(second_group);
    return 0.0;
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(in_time, 1);
  EXPECT_EQ(result.tree.size(), 6u);
}

TEST(Speculation, OpensTheLikeliestBeforeTheirValuesAreKnownAndFreesTheLosers) {
  const Engine engine = test::load("llama2");
  Session session(engine);
  TreeOfThoughts strategy;
  strategy.depth = 2;
  strategy.width = 1;
  strategy.steps.speculate = 2;
  strategy.steps.prior = [](const Thought& thought) { return thought.text == "b" ? 0.1 : 0.4; };
  std::promise<void> promise;
  const std::shared_future<void> opened = promise.get_future().share();
  std::vector<std::vector<std::string>> calls;
  strategy.steps.propose = [&](Session& s, std::span<Branch> nodes) {
    std::vector<std::string>& call = calls.emplace_back();
    for (const Branch& node : nodes) call.push_back(path_of(node));
    if (calls.size() == 2) promise.set_value();
    return test::letters(3)(s, nodes);
  };
  std::atomic<int> in_time = 0;
  strategy.steps.judgement.evaluator_threads = 2;
  strategy.steps.judgement.evaluate = [&](const Candidate& candidate) {
    if (candidate.depth == 1) in_time += comes(opened);
    return candidate.text == "c" ? 1.0 : 0.0;
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(in_time, 3);
  // a and c are the likeliest; c is kept, and not proposed from again.
  EXPECT_EQ(calls, (std::vector<std::vector<std::string>>{{""}, {"a", "c"}}));
  EXPECT_EQ(path_of(result.branch), "cc");
  EXPECT_EQ(session.stats().branches_live, 1);
}

/// Who goes on with a solution gets the same whether its steps had been opened or not.
TEST(Speculation, LeavesNoTraceInTheBranchThatItOpened) {
  const auto solve = [](int speculate) {
    const Engine engine = test::load("dendrite-24");
    Session session(engine, {.seed = 11});
    TreeOfThoughts strategy;
    strategy.steps.candidates = 5;
    strategy.steps.speculate = speculate;
    strategy.steps.judgement.evaluator_threads = 2;
    strategy.steps.judgement.evaluate = [](const Candidate&) { return 0.0; };
    strategy.solved = [](const Branch& branch, const std::string&) {
      return std::ranges::count(branch.text(), '\n') == 2;
    };
    SearchResult result = session.run_tree(strategy, "P 24: 4 6 7 9\n");
    EXPECT_TRUE(result.solved);
    return std::pair(result.branch.stream(), result.branch.fork().stream());
  };
  const auto expected = solve(0);
  EXPECT_EQ(solve(25), expected);
}

TEST(Speculation, ProposesFromWhatItDidNotExpect) {
  const Engine engine = test::load("llama2");
  Session session(engine);
  TreeOfThoughts strategy;
  strategy.depth = 2;
  strategy.width = 2;
  strategy.steps.speculate = 1;
  std::vector<std::size_t> calls;
  strategy.steps.propose = [&](Session& s, std::span<Branch> nodes) {
    calls.push_back(nodes.size());
    return test::letters(3)(s, nodes);
  };
  strategy.steps.judgement.evaluator_threads = 1;
  strategy.steps.judgement.evaluate = [](const Candidate& candidate) {
    return static_cast<double>(candidate.history[0]);
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(calls, (std::vector<std::size_t>{1, 1, 2}));  // a ahead; then b and c
  EXPECT_EQ(path_of(result.branch), "ca");
}

TEST(Evaluators, WhatTheyThrowComesOutOfTheSearch) {
  const Engine engine = test::load("llama2", {.prefix_index = false});
  for (const int threads : {0, 2}) {
    Session session(engine);
    TreeOfThoughts strategy;
    strategy.steps.propose = test::letters(4);
    strategy.steps.judgement.evaluator_threads = threads;
    strategy.steps.judgement.evaluate = [](const Candidate& candidate) -> double {
      if (candidate.text == "c") throw Error("no value for c");
      return 0;
    };
    EXPECT_ERROR(session.run_tree(strategy, "start\n"), "no value for c");
  }
  test::expect_all_pages_free(engine);
}

}  // namespace
}  // namespace dendrite
