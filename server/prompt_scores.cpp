#include "server/prompt_scores.h"

namespace dendrite::server {

PromptScores::PromptScores(Session& session, Branch& root, int top, std::function<void()> done)
    : prompt_(root.tokens()) {
  // (Streams of their own: what the root's forks draw must not depend on whether it was scored.)
  const ForkOptions aside{.stream = ~std::uint64_t{0}};
  first_ = root.at(1, aside);
  const std::vector<Token> rest(prompt_.begin() + 1, prompt_.end());
  if (rest.empty()) {
    done();
    return;
  }
  auto left = std::make_shared<std::atomic<int>>(top > 0 ? 2 : 1);
  const auto one_done = [left, done = std::move(done)] {
    if (--*left == 0) done();
  };
  scores_ = session.submit_score_tokens(std::span(&first_, 1), {rest});
  if (top > 0) {
    for (std::int64_t length = 1; length < std::ssize(prompt_); ++length) {
      prefixes_.push_back(root.at(length, aside));
    }
    tops_ = session.submit_next_tokens(prefixes_, {.top = top});
    tops_.on_done(one_done);
  }
  scores_.on_done(one_done);
}

std::vector<ChosenToken> PromptScores::get() {
  std::vector<ChosenToken> out;
  if (prompt_.size() < 2) return out;
  const std::vector<float> logprobs = scores_.get().front().front().tokens;
  if (logprobs.size() + 1 != prompt_.size()) return out;
  for (std::size_t i = 0; i < logprobs.size(); ++i)
    out.push_back({prompt_[i + 1], logprobs[i], {}});
  if (!tops_.valid()) return out;
  std::vector<std::vector<TokenLogprob>> tops = tops_.get();
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (tops[i].empty()) return {};
    out[i].top = std::move(tops[i]);
  }
  return out;
}

}  // namespace dendrite::server
