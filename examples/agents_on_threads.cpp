// Three agents on three threads over one engine. Each makes plain calls that wait for their result;
// the engine computes for all of them in the same steps, and what each gets is what it would get
// alone.
#include <dendrite/dendrite.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <future>
#include <map>
#include <ranges>

#include "puzzle.h"

namespace {
using namespace dendrite;

struct Agent {
  std::string name;
  std::string prompt;  // the model's own, for "propose a step"
  puzzle::Numbers numbers;
  double weight = 1;  // its part of a step's rows, should they ever be short
};

struct Answer {
  std::string steps;  // empty: none found
  Stats stats;
};

/// One step further: twenty tries from each state, and of those that are legal the five that the
/// model is surest can be solved.
std::vector<Branch> next_states(Session& session, std::span<Branch> states,
                                const puzzle::Numbers& numbers) {
  std::vector<Branch> tries;
  for (Branch& state : states) std::ranges::move(state.fork(20), std::back_inserter(tries));
  session.decode(tries, {.max_tokens = 32, .stop = {"\n"}, .temperature = 1.0});
  std::erase_if(tries, [&](const Branch& b) { return !puzzle::after_steps(numbers, b.text()); });
  // It was taught to answer "?" with "sure" or "impossible".
  const std::vector<std::vector<Score>> labels = session.score(tries, {"?s", "?i"});
  std::map<double, Branch*> by_doubt;  // the same text once: its scores are the same, to the bit
  for (std::size_t i = 0; i < tries.size(); ++i) {
    by_doubt.emplace(labels[i][1].logprob - labels[i][0].logprob, &tries[i]);
  }
  std::vector<Branch> kept;
  for (const auto& [doubt, branch] : by_doubt | std::views::take(5)) {
    kept.push_back(std::move(*branch));
  }
  return kept;
}

// [agent]
/// In a thread of its own. Each call waits for its result, and computes for all who wait.
Answer solve(const Engine& engine, const Agent& agent) {
  Session session(engine, {.seed = 1, .weight = agent.weight});
  std::vector<Branch> states;
  states.push_back(session.prefill(agent.prompt));
  for (std::size_t step = 1; step < agent.numbers.size(); ++step) {
    states = next_states(session, states, agent.numbers);
  }
  for (const Branch& state : states) {
    if (puzzle::after_steps(agent.numbers, state.text()) == puzzle::Numbers{24}) {
      return {state.text(), session.stats()};
    }
  }
  return {"", session.stats()};
}
// [/agent]

}  // namespace

int main(int argc, char** argv) try {
  const Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-24");
  const std::vector<Agent> agents = {{"first", "P 24: 4 5 6 10\n", {4, 5, 6, 10}, 1},
                                     {"second", "P 24: 3 5 9 13\n", {3, 5, 9, 13}, 1},
                                     {"hurried", "P 24: 2 4 6 8\n", {2, 4, 6, 8}, 4}};
  std::vector<std::future<Answer>> answers;
  for (const Agent& agent : agents) {
    answers.push_back(std::async(std::launch::async, solve, engine, agent));
  }

  bool all_solved = true;
  std::int64_t steps = 0;
  for (std::size_t i = 0; i < agents.size(); ++i) {
    const Answer answer = answers[i].get();
    all_solved = all_solved && !answer.steps.empty();
    steps += answer.stats.steps;
    std::printf("%s (%lld rows):\n%s", agents[i].name.c_str(),
                static_cast<long long>(answer.stats.tokens_computed),
                answer.steps.empty() ? "nothing found\n" : answer.steps.c_str());
  }
  const EngineStats stats = engine.stats();
  std::printf(
      "%lld steps for the %lld that the agents took part in: %.1f rows a step, at most %lld\n",
      static_cast<long long>(stats.steps), static_cast<long long>(steps),
      static_cast<double>(stats.rows) / static_cast<double>(stats.steps),
      static_cast<long long>(stats.largest_batch_rows));
  return all_solved ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "agents_on_threads: %s\n", error.what());
  return 1;
}
