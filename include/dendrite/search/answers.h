#pragma once

#include "dendrite/search/common.h"

// Many answers to one prompt, sampled in one batch. In the record an answer is one thought; its
// text ends before the stop string.
namespace dendrite {

/// Best-of-n: the answer that is a solution, else the one of the highest value; the others follow
/// as `others`, solutions first, then by value. Those that a stop cut inside of what a constraint
/// asks for (Finish::kStopInside) are no solutions, and come last.
struct BestOfN {
  int n = 8;
  DecodeParams sampling{.temperature = 1.0};
  /// Ends the search with the first step in which an answer that ends is a solution; whatever is
  /// not finished is dropped in that step. Answers that end in the same step: the first.
  bool first_success = false;
  /// Default: the mean log-prob of the answer's tokens.
  Judgement judgement{};
  /// Asked of answers that ended by themselves or at max_tokens. Default: none is.
  std::function<bool(const Branch& branch, const std::string& answer)> solved{};
  std::function<void(const SearchEvent&)> on_event{};
  std::stop_token cancel{};
};
SearchResult run(Session& session, Branch root, const BestOfN& strategy);

/// Self-consistency (Wang et al. 2022, arXiv:2203.11171): the answer that most samples agree on.
/// `votes` has them all, most votes first (ties: the answer that was given first, by the sample
/// with the fewest tokens); the result is the first sample that gave the winner, and a thought's
/// value is its answer's share of the votes. One that a stop cut inside of what a constraint asks
/// for does not vote.
struct SelfConsistency {
  int n = 16;
  DecodeParams sampling{.temperature = 1.0};
  /// What a sample votes for; nullopt: it does not vote. Default: its text.
  std::function<std::optional<std::string>(const Branch& branch, const std::string& text)> answer{};
  /// Ends as soon as the leading answer is the majority's with this probability, by the Beta
  /// criterion over the two most frequent answers (Aggarwal et al. 2023, arXiv:2305.11860), or
  /// cannot be overtaken; what is not finished is dropped in that step. 1: never before all are in.
  double confidence = 1;
  /// Whether the winner is a solution. Default: it is not.
  std::function<bool(const Branch& branch, const std::string& text)> solved{};
  std::function<void(const SearchEvent&)> on_event{};
  std::stop_token cancel{};
};
SearchResult run(Session& session, Branch root, const SelfConsistency& strategy);

/// The probability that an answer with `first` votes is more frequent than one with `second`, both
/// drawn from a uniform prior: P(p > 1/2) for p ~ Beta(first + 1, second + 1).
double majority_confidence(int first, int second);

}  // namespace dendrite
