// Log-probabilities of several continuations of one prompt. What they have in common is computed
// once, and the branch stays as it was.
#include <dendrite/dendrite.h>

#include <cstdio>
#include <exception>

int main(int argc, char** argv) try {
  using namespace dendrite;
  Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-24");
  Session session(engine);
  Branch puzzle = session.prefill("P 24: 4 5 6 10\n");  // "propose a first step"

  const std::vector<std::string> steps = {"10-4=6 | 5 6 6\n",   // legal, and leads to 24
                                          "10-5=5 | 4 5 6\n",   // legal
                                          "10-5=6 | 4 6 6\n",   // wrong arithmetic
                                          "10-5=5 | 4 5 5\n"};  // wrong rest
  const std::vector<Score> scores = puzzle.score(steps);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    std::printf("%8.3f  %s", scores[i].logprob, steps[i].c_str());
  }

  // select() appends the likeliest one; score() on many branches at once is Session::score.
  const std::size_t best = puzzle.select(steps).value();
  std::printf("taken: %s%lld tokens computed, %lld as independent requests\n", steps[best].c_str(),
              static_cast<long long>(session.stats().tokens_computed),
              static_cast<long long>(session.stats().tokens_independent));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "score: %s\n", error.what());
  return 1;
}
