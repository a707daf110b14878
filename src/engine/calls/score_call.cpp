#include "engine/calls/score_call.h"

#include <algorithm>
#include <limits>

#include "dendrite/error.h"
#include "engine/calls/prompt_branch.h"
#include "step/stepper.h"

namespace dendrite {

ScoreCall::ScoreCall(SessionCore& session, ConstBranches branches,
                     std::span<const Continuations> continuations, const ScoreParams& params)
    : RequestsCall(session, params.cancel), tips_(engine_) {
  if (params.top_logprobs < 0) {
    throw Error("score: top_logprobs is " + std::to_string(params.top_logprobs) +
                "; expected >= 0");
  }
  top_ = static_cast<std::size_t>(params.top_logprobs);
  if (continuations.size() != 1 && continuations.size() != branches.size()) {
    throw Error("score: got " + std::to_string(continuations.size()) +
                " lists of continuations for " + std::to_string(branches.size()) +
                " branches; expected one for each");
  }
  for (const Continuations& list : continuations) {
    for (const std::vector<Token>& continuation : list) {
      if (continuation.empty()) {
        throw Error("score: a continuation has no tokens; expected at least one");
      }
      engine_.check_tokens(continuation);
    }
  }
  const auto of = [&](std::size_t branch) -> const Continuations& {
    return continuations[continuations.size() == 1 ? 0 : branch];
  };
  {
    const TreeLock lock(engine_.tree_mutex);
    hold(branches, "score");
  }
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const Matcher matcher = session.find_matcher(*state_of(branches[i]));
    std::vector<std::size_t>& accepted = accepted_.emplace_back();
    for (std::size_t j = 0; matcher.valid() && j < of(i).size(); ++j) {
      accepted.push_back(matcher.count_accepted(of(i)[j]));
    }
  }
  const TreeLock lock(engine_.tree_mutex);
  for (std::size_t i = 0; i < branches.size(); ++i) add_root(*state_of(branches[i]), of(i));
  ++engine_.clock;
  for (std::size_t i = 0; i < tries_.size(); ++i) grow(i, 0, roots_[i]->tip);
  want_rows();
  engine_.debug_check();
}

void ScoreCall::add_root(BranchState& branch, const Continuations& continuations) {
  const std::int64_t length = engine_.tree->length(branch.tip);
  std::int64_t independent = 0;
  for (const std::vector<Token>& continuation : continuations) {
    // (The last token has no row.)
    check_positions(engine_, length + std::ssize(continuation) - 1, "score");
    independent += length + std::ssize(continuation) - 1;
  }
  independent_.push_back(independent);
  roots_.push_back(&branch);
  tries_.emplace_back(continuations);
  branch.last_used = engine_.clock + 1;
}

void ScoreCall::want_rows() {
  for (BranchState* root : roots_) want(wish_for(*root, root->tip));
  for (Tip* tip : tips_.all()) {
    // All rows from the first scored token on; the root's own distribution is its segment's.
    const auto found = scored_.find(engine_.tree->segment(*tip));
    if (found == scored_.end()) continue;
    Wish wish = wish_for(*roots_[found->second.trie], *tip);
    wish.request.keep_logits = false;
    wish.request.logits_from = 0;
    wish.request.sink = this;
    want(wish);
  }
}

void ScoreCall::finish(Finish ended) {
  for (std::size_t i = 0; i < tries_.size(); ++i) {
    const auto logits = kept_logits(*roots_[i]);
    if (ended != Finish::kRunning || logits == nullptr || has_no_room()) {
      const Score missing{std::numeric_limits<double>::quiet_NaN(), {}};
      scores_.emplace_back(tries_[i].scores().size(), missing);
      continue;
    }
    tries_[i].tokens_after(0, tokens_);
    if (!tokens_.empty()) {
      tries_[i].take(0, engine_.stepper->readout().log_probs(*logits, tokens_, top_));
    }
    scores_.push_back(tries_[i].scores());
    const TreeLock lock(engine_.tree_mutex);
    session_->stats.tokens_independent += independent_[i];
  }
  refuse();
  const TreeLock lock(engine_.tree_mutex);
  tips_.drop();
}

void ScoreCall::refuse() {
  constexpr float kRefused = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < scores_.size(); ++i) {
    for (std::size_t j = 0; j < accepted_[i].size(); ++j) {
      Score& score = scores_[i][j];
      if (accepted_[i][j] >= score.tokens.size()) continue;
      std::fill(score.tokens.begin() + static_cast<std::ptrdiff_t>(accepted_[i][j]),
                score.tokens.end(), kRefused);
      score.logprob = kRefused;
      score.greedy = false;
    }
  }
}

std::shared_ptr<const LogitsRow> ScoreCall::kept_logits(const BranchState& branch) const {
  const TreeLock lock(engine_.tree_mutex);
  return engine_.tree->segment(branch.tip)->logits;
}

std::span<const Token> ScoreCall::wanted(const Segment& segment, std::int64_t position) {
  tokens_.clear();
  if (const Place place = place_of(segment, position); place.node >= 0) {
    tries_[place.trie].tokens_after(place.node, tokens_);
  }
  return tokens_;
}

void ScoreCall::take(const Segment& segment, std::int64_t position, const RowLogprobs& read) {
  const Place place = place_of(segment, position);
  if (place.node >= 0) tries_[place.trie].take(place.node, read);
}

ScoreCall::Place ScoreCall::place_of(const Segment& segment, std::int64_t position) const {
  const auto found = scored_.find(&segment);
  if (found == scored_.end() || position < found->second.begin) return {};
  const Scored& scored = found->second;
  return {scored.trie, scored.nodes[static_cast<std::size_t>(position - scored.begin)]};
}

/// Gives the internal nodes below `index` tips of their own: chains share one, forks fork.
void ScoreCall::grow(std::size_t trie, std::int32_t index, Tip& from) {
  for (const std::int32_t first : tries_[trie].node(index).children) {
    if (!tries_[trie].node(first).internal()) continue;
    Tip& tip = tips_.fork(from);
    Scored scored{trie, engine_.tree->length(tip), {}};
    std::vector<Token> tokens;
    std::int32_t node = first;
    for (;;) {
      tokens.push_back(tries_[trie].node(node).token);
      scored.nodes.push_back(node);
      const std::int32_t next = only_internal_child(trie, node);
      if (next < 0) break;
      node = next;
    }
    engine_.tree->append(tip, tokens);
    scored_.emplace(engine_.tree->segment(tip), std::move(scored));
    grow(trie, node, tip);
  }
}

/// The next node of a chain, -1 where it ends or branches.
std::int32_t ScoreCall::only_internal_child(std::size_t trie, std::int32_t index) {
  std::int32_t found = -1;
  for (const std::int32_t child : tries_[trie].node(index).children) {
    if (!tries_[trie].node(child).internal()) continue;
    if (found >= 0) return -1;
    found = child;
  }
  return found;
}

}  // namespace dendrite
