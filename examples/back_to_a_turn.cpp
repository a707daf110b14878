// An agent of 200 turns goes back to its seventh and says something else. On a model with recurrent
// layers (Qwen3.5) their states can't be cut like K and V: what of them is kept, and computed again
// where it is not, is what this counts.
#include <dendrite/dendrite.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

namespace {
using namespace dendrite;

// [back]
void take_turn(Session& session, Branch& agent, const std::string& said) {
  agent.append("user: " + said + "\nagent: ");
  session.decode(agent, {.max_tokens = 12, .temperature = 1, .ignore_eos = true});
  agent.append("\n");
}

/// What the agent was when it had so many tokens, and another turn.
Branch go_back(Session& session, Branch& agent, std::int64_t length) {
  Branch other = agent.at(length);
  take_turn(session, other, "do something else");
  return other;
}
// [/back]

}  // namespace

int main(int argc, char** argv) try {
  // (The tiny model that this is tested on has few positions.)
  Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-24",
                               {.kv_tokens = 16384, .beyond_positions = true});
  Session session(engine);
  Branch agent = session.prefill("You are an agent. Be brief.\n");
  std::vector<std::int64_t> ends;
  for (int turn = 1; turn <= 200; ++turn) {
    take_turn(session, agent, "do number " + std::to_string(turn));
    ends.push_back(agent.length());
  }
  const std::int64_t rows = engine.stats().rows;
  const Branch other = go_back(session, agent, ends[6]);
  const EngineStats stats = engine.stats();
  std::printf("%lld tokens in %lld rows\n", static_cast<long long>(agent.length()),
              static_cast<long long>(rows));
  std::printf("back to turn 7: %lld tokens more in %lld rows\n",
              static_cast<long long>(other.length() - ends[6]),
              static_cast<long long>(stats.rows - rows));
  std::printf("states: %lld of %lld, tokens behind them: %lld of %lld\n",
              static_cast<long long>(stats.states_used),
              static_cast<long long>(engine.info().states),
              static_cast<long long>(stats.state_tokens_used),
              static_cast<long long>(engine.info().state_tokens));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
