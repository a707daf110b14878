#include "engine/expand_call.h"

#include <algorithm>
#include <cmath>

#include "dendrite/error.h"
#include "sample/distribution.h"

namespace dendrite {
namespace {

/// Those of one distribution that the parameters name, likeliest first.
std::vector<TokenLogprob> likeliest(std::span<const float> logits, const ExpandParams& params) {
  const double lse = log_sum_exp(logits);
  const auto enough = [&](double logprob) { return std::exp(logprob) >= params.min_prob; };
  const std::ptrdiff_t top =
      params.top > 0 ? params.top
                     : std::ranges::count_if(logits, [&](float v) { return enough(v - lse); });
  std::vector<TokenLogprob> tokens = top_logprobs(logits, lse, static_cast<std::size_t>(top));
  const auto first_out = std::ranges::find_if_not(tokens, enough, &TokenLogprob::logprob);
  tokens.erase(first_out, tokens.end());
  return tokens;
}

}  // namespace

ExpandCall::ExpandCall(SessionCore& session, std::span<const Branch> branches,
                       const ExpandParams& params)
    : RequestsCall(session, params.cancel), params_(params) {
  if (params.top <= 0 && !(params.min_prob > 0)) {
    throw Error(
        "ExpandParams: neither top nor min_prob is > 0; expected at least one, else every token of "
        "the vocabulary would become a branch");
  }
  const TreeLock lock(engine_.tree_mutex);
  for (const Branch& branch : branches) {
    check_free(session.require_live(branch, "next_tokens"), "next_tokens");
  }
  ++engine_.clock;
  for (const Branch& branch : branches) {
    BranchState& state = *branch.state();
    hold(state);
    branches_.push_back(&state);
    state.last_used = engine_.clock;
    want(wish_for(state, state.tip));
  }
}

void ExpandCall::conclude(Finish ended) {
  std::vector<std::shared_ptr<const LogitsRow>> logits;
  {
    const TreeLock lock(engine_.tree_mutex);
    for (BranchState* state : branches_) {
      logits.push_back(engine_.tree->segment(state->tip)->logits);
      if (logits.back() == nullptr) {
        state->finish = ended == Finish::kRunning ? Finish::kBudget : ended;
      } else {
        session_->count_independent(*state, engine_.tree->length(state->tip));
      }
    }
  }
  tokens_.resize(branches_.size());
  engine_.workers->parallel_for(
      std::ssize(branches_), 1, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
          if (logits[i] != nullptr) tokens_[i] = likeliest(logits[i]->values, params_);
        }
      });
}

std::vector<std::vector<Branch>> SessionCore::children(
    std::span<const Branch> branches, std::span<const std::vector<TokenLogprob>> tokens) {
  if (tokens.size() != branches.size()) {
    throw Error("children: there are " + std::to_string(tokens.size()) +
                " lists of tokens; expected " + std::to_string(branches.size()) +
                ", one for each branch");
  }
  for (const std::vector<TokenLogprob>& list : tokens) {
    for (const TokenLogprob& token : list) engine->check_tokens(std::span(&token.id, 1));
  }
  std::vector<std::vector<Branch>> out(branches.size());
  const TreeLock lock(engine->tree_mutex);
  for (std::size_t i = 0; i < branches.size(); ++i) {
    BranchState& parent = require_live(branches[i], "children");
    for (const TokenLogprob& token : tokens[i]) {
      out[i].push_back(child(parent, token));
      // Without sharing, the first child would go on from its parent's request; the others are new
      // ones. None has a row before somebody wants its distribution.
      if (out[i].size() == 1) {
        out[i].back().state()->independent_tokens = parent.independent_tokens;
      }
    }
  }
  return out;
}

}  // namespace dendrite
