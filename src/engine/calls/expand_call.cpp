#include "engine/calls/expand_call.h"

#include <algorithm>
#include <cmath>

#include "dendrite/error.h"
#include "sample/distribution.h"

namespace dendrite {
namespace {

/// Those of one distribution that the parameters name and the mask allows, likeliest first.
std::vector<TokenLogprob> likeliest(std::span<const float> logits, const ExpandParams& params,
                                    std::span<const std::uint32_t> mask) {
  const double lse = log_sum_exp(logits);
  const auto enough = [&](double logprob) { return std::exp(logprob) >= params.min_prob; };
  const std::ptrdiff_t top =
      params.top > 0 ? params.top
                     : std::ranges::count_if(logits, [&](float v) { return enough(v - lse); });
  std::vector<TokenLogprob> tokens = top_logprobs(logits, lse, static_cast<std::size_t>(top), mask);
  const auto first_out = std::ranges::find_if_not(tokens, enough, &TokenLogprob::logprob);
  tokens.erase(first_out, tokens.end());
  return tokens;
}

}  // namespace

ExpandCall::ExpandCall(SessionCore& session, ConstBranches branches, const ExpandParams& params)
    : RowsCall(session, params.cancel), params_(params) {
  if (params.top <= 0 && !(params.min_prob > 0)) {
    throw Error(
        "ExpandParams: neither top nor min_prob is > 0; expected at least one, else every token of "
        "the vocabulary would become a branch");
  }
  add(branches, "next_tokens");
  for (const Branch& branch : branches) {
    matchers_.push_back(session.find_matcher(*state_of(branch)));
  }
  const TreeLock lock(engine_.tree_mutex);
  for (const Branch& branch : branches) {
    is_full_.push_back(engine_.tree->length(state_of(branch)->tip) >= engine_.position_limit);
  }
}

void ExpandCall::read(std::span<const std::shared_ptr<const LogitsRow>> rows) {
  tokens_.resize(rows.size());
  engine_.workers->parallel_for(std::ssize(rows), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      if (rows[i] != nullptr) tokens_[i] = read_one(i, *rows[i]);
    }
  });
}

std::vector<TokenLogprob> ExpandCall::read_one(std::size_t i, const LogitsRow& row) {
  if (is_full_[i]) {
    mark(i, Finish::kLength);
    return {};
  }
  if (!matchers_[i].valid()) return likeliest(row.values, params_, {});
  try {
    const MaskRef mask = matchers_[i].mask();
    if (mask->count() > 0) return likeliest(row.values, params_, mask->words());
    mark(i, matchers_[i].is_accepting() ? Finish::kStop : Finish::kDeadEnd);
  } catch (const GrammarLimit&) {  // there is no telling which
    mark(i, Finish::kDeadEnd);
  }
  return {};
}

std::vector<std::vector<Branch>> children_of(SessionCore& session, ConstBranches branches,
                                             std::span<const std::vector<TokenLogprob>> tokens) {
  if (tokens.size() != branches.size()) {
    throw Error("children: there are " + std::to_string(tokens.size()) +
                " lists of tokens; expected " + std::to_string(branches.size()) +
                ", one for each branch");
  }
  for (const std::vector<TokenLogprob>& list : tokens) {
    for (const TokenLogprob& token : list) session.engine->check_tokens(std::span(&token.id, 1));
  }
  std::vector<BranchState*> parents;
  std::vector<bool> forced;  // the constraint leaves one token
  for (std::size_t i = 0; i < branches.size(); ++i) {
    parents.push_back(&session.require_live(branches[i], "children"));
    Matcher matcher = session.find_matcher(*parents[i]);
    forced.push_back(matcher.valid() && !tokens[i].empty() && matcher.mask()->count() == 1);
    for (const TokenLogprob& token : tokens[i]) {
      if (!matcher.valid() || matcher.count_accepted(std::span(&token.id, 1)) == 1) continue;
      throw Error("children: the constraint of branch " + std::to_string(i) + " refuses token id " +
                  std::to_string(token.id) + "; expected those that next_tokens gives");
    }
  }
  std::vector<std::vector<Branch>> out(branches.size());
  const TreeLock lock(session.engine->tree_mutex);
  for (std::size_t i = 0; i < branches.size(); ++i) {
    BranchState& parent = *parents[i];
    for (const TokenLogprob& token : tokens[i]) {
      out[i].push_back(session.child(parent, {token.id, forced[i] ? 0 : token.logprob}));
      // Without sharing, the first child would go on from its parent's request; the others are new
      // ones. None has a row before somebody wants its distribution.
      if (out[i].size() == 1) {
        state_of(out[i].back())->independent_tokens = parent.independent_tokens;
      }
    }
  }
  return out;
}

}  // namespace dendrite
