#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "dendrite/search/common.h"

namespace dendrite {

/// Whether a call ended for want of budget or pages, or was cancelled.
bool was_cut_short(Finish finish);
/// Whether it ended as a step of a search ends: by a stop, be it inside of what a constraint asks
/// for, which goes on with the next step, or by an end-of-sequence token.
bool ended_by_itself(Finish finish);

/// A value to sort by: what could not be computed (NaN) is below everything.
double rank(double value);

/// Indices of thoughts, best value first; equal values in the order of proposal.
std::vector<std::size_t> best_first(std::span<const Thought> thoughts);

/// A value as a branch's priority: thousandths, within the range of an int.
int priority_of(double value);

/// Throws Error when a callable did not answer for each branch that it was given.
void check_count(const std::string& search, const char* callable, const char* what, std::size_t got,
                 std::size_t expected);

/// What the branch's text has that `before` had not, a text of its past. Whole characters: where
/// `before` ended inside of one, it is among what was added.
std::string added_text(const Branch& branch, std::string_view before);

/// Where a stop ended the branch: whether its constraint, if it has one, lets the text end there,
/// with all of it and with `kept` alone, what comes before the stop, of the text behind `before`.
bool may_end_at_stop(Branch& branch, std::string_view before, std::string_view kept);

/// The same as added_text without line ends behind.
std::string last_step(const Branch& branch, std::string_view before);

/// The record of one search: numbers its thoughts, tells of them, and says at the end what came of
/// it.
class SearchLog {
 public:
  explicit SearchLog(const std::function<void(const SearchEvent&)>& on_event)
      : on_event_(on_event) {}

  /// Gives the thought its number and its branch id.
  void proposed(Thought& thought);
  void judged(Thought& thought, double value);
  void visited(const Thought& thought) { tell(SearchEvent::Kind::kVisited, thought); }
  /// Also hands the value on as the branch's priority.
  void kept(Thought& thought);
  void pruned(const Thought& thought) { tell(SearchEvent::Kind::kPruned, thought); }

  /// The end of a search that found nothing.
  SearchResult end(Finish finish);
  /// ... whose best is this one (none, when its branch is empty).
  SearchResult end_at(Thought best, Finish finish);
  SearchResult solved(Thought solution);

  std::size_t size() const { return result_.tree.size(); }

 private:
  void tell(SearchEvent::Kind kind, const Thought& thought);
  void trace_path(NodeId node);

  const std::function<void(const SearchEvent&)>& on_event_;
  SearchResult result_;
};

}  // namespace dendrite
