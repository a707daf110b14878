#include "search/search_log.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dendrite/error.h"

namespace dendrite {

const char* name_of(SearchEvent::Kind kind) {
  switch (kind) {
    case SearchEvent::Kind::kProposed:
      return "proposed";
    case SearchEvent::Kind::kJudged:
      return "judged";
    case SearchEvent::Kind::kVisited:
      return "visited";
    case SearchEvent::Kind::kKept:
      return "kept";
    case SearchEvent::Kind::kPruned:
      return "pruned";
    case SearchEvent::Kind::kSolved:
      return "solved";
  }
  return "?";
}

bool was_cut_short(Finish finish) {
  return finish == Finish::kBudget || finish == Finish::kCancelled;
}

bool ended_by_itself(Finish finish) {
  return finish == Finish::kStop || finish == Finish::kStopInside || finish == Finish::kEos;
}

double rank(double value) {
  return std::isnan(value) ? -std::numeric_limits<double>::infinity() : value;
}

std::vector<std::size_t> best_first(std::span<const Thought> thoughts) {
  std::vector<std::size_t> order(thoughts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return rank(thoughts[a].value) > rank(thoughts[b].value);
  });
  return order;
}

int priority_of(double value) {
  constexpr double kLargest = 1e9;
  return static_cast<int>(std::clamp(rank(value) * 1000, -kLargest, kLargest));
}

void check_count(const std::string& search, const char* callable, const char* what, std::size_t got,
                 std::size_t expected) {
  if (got == expected) return;
  throw Error(search + ": " + callable + " returned " + std::to_string(got) + " " + what +
              "; expected " + std::to_string(expected) + ", one for each branch");
}

std::string added_text(const Branch& branch, std::string_view before) {
  std::string text = branch.text();
  // A character that is not finished reads as U+FFFD until it is.
  auto at = std::ranges::mismatch(text, before).in1 - text.begin();
  while (at > 0 && at < std::ssize(text) && (text[static_cast<std::size_t>(at)] & 0xC0) == 0x80) {
    --at;
  }
  text.erase(0, static_cast<std::size_t>(at));
  return text;
}

bool may_end_at_stop(Branch& branch, std::string_view before, std::string_view kept) {
  if (!branch.constraint()) return true;
  if (!branch.is_accepted()) return false;
  std::size_t end = added_text(branch, before).size();
  if (end == kept.size()) return true;
  Branch past;
  for (std::int64_t length = branch.length() - 1; end > kept.size(); --length) {
    // (With its own stream: this is no fork that others' streams count.)
    past = branch.at(length, {.stream = branch.stream()});
    end = added_text(past, before).size();
  }
  try {
    past.append(kept.substr(end));
  } catch (const Error&) {  // the rest of a token is refused
    return false;
  }
  return past.is_accepted();
}

std::string last_step(const Branch& branch, std::string_view before) {
  std::string text = added_text(branch, before);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

void SearchLog::tell(SearchEvent::Kind kind, const Thought& thought) {
  if (thought.node != NodeId::kRoot) {
    result_.tree[static_cast<std::size_t>(thought.node) - 1] = thought;
  }
  if (on_event_) on_event_({kind, &thought});
}

void SearchLog::proposed(Thought& thought) {
  result_.tree.emplace_back();
  thought.node = static_cast<NodeId>(result_.tree.size());
  thought.branch_id = thought.branch.id();
  tell(SearchEvent::Kind::kProposed, thought);
}

void SearchLog::judged(Thought& thought, double value) {
  thought.value = value;
  tell(SearchEvent::Kind::kJudged, thought);
}

void SearchLog::kept(Thought& thought) {
  thought.kept = true;
  thought.branch.set_priority(priority_of(thought.value));
  tell(SearchEvent::Kind::kKept, thought);
}

SearchResult SearchLog::end(Finish finish) {
  result_.finish = finish;
  return std::move(result_);
}

SearchResult SearchLog::end_at(Thought best, Finish finish) {
  trace_path(best.node);
  result_.branch = std::move(best.branch);
  return end(finish);
}

SearchResult SearchLog::solved(Thought solution) {
  tell(SearchEvent::Kind::kSolved, solution);
  result_.solved = true;
  return end_at(std::move(solution), Finish::kStop);
}

void SearchLog::trace_path(NodeId node) {
  while (node != NodeId::kRoot) {
    result_.path.push_back(result_.tree[static_cast<std::size_t>(node) - 1]);
    node = result_.path.back().parent;
  }
  std::reverse(result_.path.begin(), result_.path.end());
}

}  // namespace dendrite
