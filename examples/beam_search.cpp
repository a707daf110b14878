// A strategy of one's own: beam search. Everything that it needs is in the public headers.
#include <dendrite/dendrite.h>

#include <algorithm>
#include <cstdio>
#include <exception>

namespace {
using namespace dendrite;

// [strategy]
/// The likeliest continuations of `root` that end with `stop`, at most `width` of them, likeliest
/// first. A step costs one batch: the distributions of all beams.
std::vector<Branch> beam_search(Session& session, Branch root, std::size_t width, Token stop,
                                int max_tokens) {
  const auto likelier = [](const Branch& a, const Branch& b) { return a.logprob() > b.logprob(); };
  std::vector<Branch> beams;
  std::vector<Branch> done;
  beams.push_back(std::move(root));
  for (int step = 0; step < max_tokens && !beams.empty(); ++step) {
    std::vector<Branch> next;
    for (std::vector<Branch>& children : session.expand(beams, {.top = static_cast<int>(width)})) {
      std::ranges::move(children, std::back_inserter(next));
    }
    std::ranges::stable_sort(next, likelier);
    next.resize(std::min(next.size(), width));  // the losers' pages go back to the pool here
    beams.clear();
    for (Branch& branch : next) {
      std::vector<Branch>& home = branch.last_token() == stop ? done : beams;
      home.push_back(std::move(branch));
    }
  }
  std::ranges::stable_sort(done, likelier);
  done.resize(std::min(done.size(), width));
  return done;
}
// [/strategy]

}  // namespace

int main(int argc, char** argv) try {
  Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-24");
  Session session(engine);
  const Token newline = engine.encode("\n", false).back();
  const std::vector<Branch> steps =
      beam_search(session, session.prefill("P 24: 4 5 6 10\n"), 8, newline, 32);
  for (const Branch& step : steps) {
    std::printf("%8.3f  %s", step.logprob(), step.text().c_str());
  }
  return steps.empty() ? 1 : 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "beam_search: %s\n", error.what());
  return 1;
}
