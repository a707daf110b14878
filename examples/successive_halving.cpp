// A strategy of one's own: successive halving. Everything that it needs is in the public headers.
#include <dendrite/dendrite.h>

#include <algorithm>
#include <cstdio>
#include <exception>

namespace {
using namespace dendrite;

// [strategy]
/// Successive halving (Karnin et al. 2013): `n` continuations race, and after every slice of tokens
/// the half with the lower mean log-prob is dropped. The last one goes on to its end.
struct SuccessiveHalving {
  int n = 16;
  DecodeParams slice{.max_tokens = 8, .temperature = 1.0};
  std::stop_token cancel{};
};

SearchResult run(Session& session, Branch root, const SuccessiveHalving& strategy) {
  const auto ended = [](const Branch& b) {
    return b.finish() != Finish::kRunning && b.finish() != Finish::kLength;
  };
  const auto cut_short = [](const Branch& b) {
    return b.finish() == Finish::kBudget || b.finish() == Finish::kCancelled;
  };
  const auto mean_logprob = [start = root.length()](const Branch& b) {
    return b.logprob() / static_cast<double>(b.length() - start);
  };
  DecodeParams slice = strategy.slice;
  slice.cancel = strategy.cancel;
  SearchResult result;
  result.finish = Finish::kStop;
  std::vector<Branch> racing = root.fork(strategy.n);
  while (!std::ranges::all_of(racing, ended)) {
    const auto done = std::ranges::stable_partition(racing, std::not_fn(ended));
    session.decode(std::span(racing.begin(), done.begin()), slice);  // one batch
    if (std::ranges::any_of(racing, cut_short)) result.finish = Finish::kBudget;
    if (result.finish != Finish::kStop) break;
    std::ranges::stable_sort(racing, std::greater{}, mean_logprob);
    racing.resize((racing.size() + 1) / 2);  // the losers' pages go back to the pool here
  }
  if (!racing.empty()) result.branch = std::move(racing.front());
  return result;
}
// [/strategy]

}  // namespace

int main(int argc, char** argv) try {
  Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-24");
  Session session(engine, {.seed = 1});
  const SearchResult result = session.run_tree(SuccessiveHalving{.n = 32}, "S 24: 4 5 6 10\n");
  std::printf("%s%lld tokens computed, %lld steps\n", result.branch.text().c_str(),
              static_cast<long long>(session.stats().tokens_computed),
              static_cast<long long>(session.stats().steps));
  return result.branch.text().ends_with("ok\n") ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "successive_halving: %s\n", error.what());
  return 1;
}
