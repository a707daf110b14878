#pragma once

#include "dendrite/search/common.h"

namespace dendrite {

/// Beam search over tokens: keeps the `width` likeliest continuations, one batch a token, until
/// nothing that still runs can beat what has finished. A finished one ends with a stop token or an
/// end-of-sequence token, and ranks by log-prob / tokens^length_penalty; what `max_tokens` cuts off
/// ranks with them. The best is the result, the next `width` - 1 are its `others`. Under a
/// constraint a beam that a stop ends where its text may not end comes behind all of these, and is
/// no solution.
///
/// With several groups it is diverse beam search (Vijayakumar et al. 2016, arXiv:1610.02424): each
/// group has an equal share of the beams, chosen one group after the other, and a token costs
/// `diversity` for each time that an earlier group chose it at the same step. The penalty decides
/// what is kept, not how it ranks.
///
/// In the record a thought is a token that was kept; its value is the branch's score so far.
struct BeamSearch {
  int width = 8;  ///< beams, all groups together
  int max_tokens = 256;
  std::vector<Token> stop_tokens{};  ///< besides the model's end-of-sequence tokens
  std::vector<std::string> stop{};   ///< a beam ends when its text holds one of these
  /// What the text of every beam must be, from the prompt on. Log-probs are the model's own.
  std::optional<Constraint> constraint{};
  double length_penalty = 1;  ///< 0: the sum of log-probs, 1: their mean
  int groups = 1;             ///< divides width
  double diversity = 0.5;     ///< >= 0; with one group without effect
  /// Asked of what finishes, with all of its text. Default: none is.
  std::function<bool(const Branch& branch, const std::string& text)> solved{};
  std::function<void(const SearchEvent&)> on_event{};
  std::stop_token cancel{};
};
SearchResult run(Session& session, Branch root, const BeamSearch& strategy);

}  // namespace dendrite
