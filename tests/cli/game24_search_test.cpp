#include "game24_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace dendrite::game24 {
namespace {

Engine shipped(int threads) {
  return Engine::load(std::string(DENDRITE_MODELS_DIR) + "/dendrite-24",
                      {.threads = threads, .kv_tokens = 32768});
}

class Searches : public ::testing::TestWithParam<std::string> {};

TEST_P(Searches, SolvePuzzlesThatWereHeldOut) {
  const Engine engine = shipped(1);
  int solved = 0;
  for (const State& numbers : {State{3, 5, 9, 13}, State{1, 5, 9, 13}, State{4, 4, 6, 12}}) {
    Session session(engine, {.seed = 1});
    const Puzzle puzzle{numbers, 24};
    const SearchResult result = solve(session, puzzle, {GetParam(), 5, 0, 1});
    EXPECT_EQ(session.stats().tokens_redundant, 0);
    if (!result.solved) continue;
    ++solved;
    State state = numbers;
    for (const std::string& step : steps_of(result.branch.text())) {
      const std::optional<State> next = next_state(state, step);
      ASSERT_TRUE(next.has_value()) << step;
      state = *next;
    }
    EXPECT_EQ(state, State{24});
  }
  // Greedy decoding misses the second, and so do few samples.
  const bool tree = GetParam() == "tot" || GetParam() == "mcts" || GetParam().ends_with("-first");
  EXPECT_GE(solved, tree ? 3 : 2);
}

TEST_P(Searches, ReplayFromWhatTheirTraceSays) {
  for (const bool constrain : {false, true}) {
    std::stringstream trace;
    {
      const Engine engine = shipped(1);
      Session session(engine, {.seed = 9, .budget = {.tokens = 5000}});
      const Search search{GetParam(), 3, 5000, 9, 0, constrain};
      solve(session, {{1, 5, 9, 13}, 24}, search, {}, &trace);
    }
    const Engine engine = shipped(3);
    const std::optional<TraceDifference> difference = replay(
        trace,
        [&](const TraceHeader& header, std::ostream& out) { solve_again(engine, header, out); });
    EXPECT_FALSE(difference.has_value()) << difference->message();
  }
}

TEST_P(Searches, HoldStepsToTheirForm) {
  const Engine engine = shipped(1);
  const Puzzle puzzle{{1, 5, 9, 13}, 24};
  Session session(engine, {.seed = 2, .budget = {.tokens = 3000}});
  std::int64_t thoughts = 0;
  const SearchResult result =
      solve(session, puzzle, {GetParam(), 4, 3000, 2, 6, true}, [&](const SearchEvent& event) {
        if (event.kind != SearchEvent::Kind::kProposed) return;
        ++thoughts;
        Branch branch = session.prefill(prompt(puzzle, 'S'));
        branch.constrain(form_of(puzzle, 'S'));
        EXPECT_NO_THROW(branch.append(event.thought->branch.text()));
        EXPECT_TRUE(event.thought->branch.constraint().has_value());
      });
  EXPECT_GT(thoughts, 0);
  EXPECT_TRUE(!result.branch.valid() || result.branch.constraint());
}

TEST(FormOf, IsWhatTheModelIsTaught) {
  const Engine engine = shipped(1);
  Session session(engine);
  const Puzzle puzzle{{4, 5, 6, 10}, 24};
  const std::string solution = "10-4=6 | 5 6 6\n6*5=30 | 6 30\n30-6=24 | 24\n";
  for (const auto& [text, mode, fits] : {std::tuple(solution, 'P', true),
                                         {solution + "ok\n", 'S', true},
                                         {solution, 'S', false},
                                         {std::string("10-4=6 | 5 6\n"), 'P', false},
                                         {std::string("04+5=9 | 6 9 10\n"), 'P', false},
                                         {std::string("1000+5=5 | 5 6 6\n"), 'P', false}}) {
    Branch branch = session.prefill(prompt(puzzle, mode));
    branch.append(text);
    const bool taken = branch.constrain_from(form_of(puzzle, mode), branch.prompt_length());
    EXPECT_EQ(taken && branch.is_accepted(), fits) << text << mode;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Searches, ::testing::ValuesIn(strategy_names()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(SolveAgain, RefusesTracesOfOtherPrograms) {
  const Engine engine = shipped(1);
  TraceHeader header;
  std::ostringstream out;
  EXPECT_THROW(solve_again(engine, header, out), Error);
  header.with("solve.numbers", "4 5 6 10").with("solve.target", "24").with("solve.strategy", "tot");
  header.with("solve.width", "five").with("solve.budget_tokens", "0");
  EXPECT_THROW(solve_again(engine, header, out), Error);
}

}  // namespace
}  // namespace dendrite::game24
