// Eight next steps for one prompt: the prompt is computed once and its pages are shared.
#include <dendrite/dendrite.h>

#include <iostream>

int main(int argc, char** argv) {
  using namespace dendrite;
  Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-24");
  Session session(engine, {.seed = 7});
  Branch root = session.prefill("P 24: 4 5 6 10\n");  // this model's prompt for "propose a step"
  std::vector<Branch> branches = root.fork(8);        // O(1) each; each draws its own numbers
  const DecodeParams params{.max_tokens = 32, .stop = {"\n"}, .temperature = 1.0};
  for (const Generation& step : session.decode(branches, params)) std::cout << step.text << "\n";
  std::cout << session.stats().fork_ns << " ns a fork\n";
}
