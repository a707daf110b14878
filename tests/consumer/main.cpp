// A program outside this repository: finds the installed package, forks a branch, decodes both.
#include <dendrite/dendrite.h>

int main(int, char** argv) {
  using namespace dendrite;
  Session session(Engine::load(argv[1]), {.seed = 7});
  const Token prompt[] = {1, 20, 30, 40};
  Branch root = session.prefill(std::span(prompt));
  Branch fork = root.fork();
  const DecodeParams params{.max_tokens = 8, .temperature = 0, .ignore_eos = true};
  const std::vector<Token> ids = session.decode(root, params).ids;
  return ids.size() == 8 && ids == session.decode(fork, params).ids ? 0 : 1;
}
