#pragma once

#include "dendrite/search/common.h"

namespace dendrite {

/// Monte-Carlo tree search over steps. A round makes `batch` descents from the prompt, each to the
/// child of the highest score at every node. A descent that ends at a thought that has a value
/// already opens its children (all of a round in one batch) and goes on to one of them; the new
/// thoughts are judged, or rolled out, in one batch; their values are backed up to the prompt. A
/// descent under way counts as a visit of value `loss` (virtual loss), so that a round spreads.
///
/// The mean value of a thought is its branch's priority: where pages are short, what promises least
/// gives way. The record's `value` and `visits` are the mean and the count of what was backed up.
/// Ends with the first solution among proposed steps or rollouts. Unsolved, also when cut short,
/// the result is the path of most visits.
struct Mcts {
  enum class Rule : std::uint8_t {
    kUct,   ///< Kocsis & Szepesvari 2006: uct_score
    kPuct,  ///< Silver et al. 2017: puct_score, with Steps::prior normalised over siblings
  };
  Rule rule = Rule::kUct;
  double exploration = 1.4;  ///< c of either score
  int iterations = 64;       ///< values backed up
  int batch = 8;             ///< descents a round; 1 is the sequential search
  int depth = 3;             ///< steps from the prompt at most
  double loss = 0;           ///< the least value: of dead ends, of NaN, of descents under way
  /// Continuations sampled from each new thought above the last depth, all of a round in one batch;
  /// its value is the mean of theirs. They are dropped afterwards. 0: the thought itself is judged.
  int rollouts = 0;
  DecodeParams rollout{.temperature = 1.0};
  Budget budget{};  ///< of this search, looked at between rounds; the session's holds as well
  Steps steps{};
  /// Asked of every proposed step, and of every rollout with its whole text. Default: none is.
  std::function<bool(const Branch& branch, const std::string& step)> solved{};
  std::function<void(const SearchEvent&)> on_event{};
  std::stop_token cancel{};
};
SearchResult run(Session& session, Branch root, const Mcts& strategy);

/// mean + exploration * sqrt(ln(parent_visits) / visits); infinite for visits = 0.
double uct_score(double mean, std::int64_t visits, std::int64_t parent_visits, double exploration);

/// mean + exploration * prior * sqrt(max(1, parent_visits)) / (1 + visits); the mean of what was
/// never visited is 0.
double puct_score(double mean, double prior, std::int64_t visits, std::int64_t parent_visits,
                  double exploration);

}  // namespace dendrite
