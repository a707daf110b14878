// Beam search over tokens: the likeliest steps for one puzzle, each up to the end of its line. The
// distributions of all beams are one batch a token.
#include <dendrite/dendrite.h>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) try {
  using namespace dendrite;
  Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-24");
  Session session(engine);
  BeamSearch strategy{.width = 8, .max_tokens = 32, .length_penalty = 0};  // by sum of log-probs
  strategy.stop_tokens = {engine.encode("\n", false).back()};
  const SearchResult result = session.run_tree(strategy, "P 24: 4 5 6 10\n");
  if (result.path.empty()) return 1;
  std::printf("%8.3f  %s", result.path.back().value, result.branch.text().c_str());
  for (const Thought& other : result.others) {
    std::printf("%8.3f  %s", other.value, other.branch.text().c_str());
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "beam_search: %s\n", error.what());
  return 1;
}
