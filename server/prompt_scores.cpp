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
  scores_ = session.submit_score_tokens(std::span(&first_, 1), {rest}, {.top_logprobs = top});
  scores_.on_done(std::move(done));
}

std::vector<ChosenToken> PromptScores::get() {
  std::vector<ChosenToken> out;
  if (prompt_.size() < 2) return out;
  Score score = std::move(scores_.get().front().front());
  if (score.tokens.size() + 1 != prompt_.size()) return out;
  for (std::size_t i = 0; i < score.tokens.size(); ++i) {
    out.push_back({prompt_[i + 1], score.tokens[i], {}});
    if (!score.top.empty()) out.back().top = std::move(score.top[i]);
  }
  return out;
}

}  // namespace dendrite::server
