#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "dendrite/error.h"
#include "dendrite/search.h"

namespace dendrite {
namespace {

bool was_cut_short(Finish finish) {
  return finish == Finish::kBudget || finish == Finish::kCancelled;
}

std::string last_step(const Branch& branch, std::size_t parent_text) {
  std::string text = branch.text();
  text.erase(0, std::min(parent_text, text.size()));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

/// The default proposer.
Proposals sample_steps(Session& session, std::span<Branch> nodes, const TreeOfThoughts& strategy) {
  std::vector<Branch> all;
  for (Branch& node : nodes) {
    for (Branch& child : node.fork(strategy.candidates)) all.push_back(std::move(child));
  }
  const std::vector<Generation> steps = session.decode(all, {.max_tokens = strategy.max_step_tokens,
                                                             .stop = {"\n"},
                                                             .temperature = strategy.temperature,
                                                             .cancel = strategy.cancel});
  Proposals proposals;
  proposals.children.resize(nodes.size());
  std::set<std::pair<std::size_t, std::string>> seen;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t node = i / static_cast<std::size_t>(strategy.candidates);
    const bool whole = steps[i].finish == Finish::kStop || steps[i].finish == Finish::kEos;
    if (whole && seen.emplace(node, steps[i].text).second) {
      proposals.children[node].push_back(std::move(all[i]));
    }
    if (was_cut_short(steps[i].finish)) proposals.finish = steps[i].finish;
  }
  return proposals;
}

/// A strategy's function has to answer for each branch that it was given.
void check_count(const char* name, const char* what, std::size_t got, std::size_t expected) {
  if (got == expected) return;
  throw Error(std::string("tree of thoughts: ") + name + " returned " + std::to_string(got) + " " +
              what + "; expected " + std::to_string(expected) + ", one for each branch");
}

ThoughtRecord record(const Thought& thought) {
  return {thought.branch.id(), thought.parent, thought.depth,
          thought.text,        thought.value,  thought.kept};
}

/// One search: the frontier and what led to it.
class Search {
 public:
  Search(Session& session, const TreeOfThoughts& strategy) : session_(session), s_(strategy) {}

  SearchResult run(Branch root) {
    if (was_cut_short(root.finish())) return ended(root.finish());
    frontier_.push_back(std::move(root));
    Finish finish = Finish::kStop;
    for (int depth = 1; depth <= s_.depth && !frontier_.empty() && finish == Finish::kStop;
         ++depth) {
      if (s_.cancel.stop_requested()) return ended(Finish::kCancelled);
      std::vector<Thought> thoughts = propose(depth, finish);
      judge(thoughts);
      if (keep_best(thoughts)) return std::move(result_);
    }
    if (finish == Finish::kStop && !frontier_.empty() && !result_.tree.empty()) {
      trace_path(best_);
      result_.branch = std::move(frontier_.front());
    }
    return ended(finish);
  }

 private:
  void tell(SearchEvent::Kind kind, const Thought& thought) {
    if (s_.on_event) s_.on_event({kind, &thought});
  }

  SearchResult ended(Finish finish) {
    result_.finish = finish;
    return std::move(result_);
  }

  std::vector<Thought> propose(int depth, Finish& finish) {
    Proposals proposals =
        s_.propose ? s_.propose(session_, frontier_) : sample_steps(session_, frontier_, s_);
    check_count("propose", "lists of steps", proposals.children.size(), frontier_.size());
    if (was_cut_short(proposals.finish)) finish = proposals.finish;
    std::vector<Thought> thoughts;
    starts_.clear();
    for (std::size_t i = 0; i < frontier_.size(); ++i) {
      const std::size_t parent_text = frontier_[i].text().size();
      for (Branch& child : proposals.children[i]) {
        Thought thought;
        thought.text = last_step(child, parent_text);
        thought.parent = frontier_[i].id();
        thought.depth = depth;
        if (s_.accept && !s_.accept(child, thought.text)) continue;
        thought.branch = std::move(child);
        tell(SearchEvent::Kind::kProposed, thought);
        thoughts.push_back(std::move(thought));
        starts_.push_back({frontier_[i].logprob(), frontier_[i].length()});
      }
    }
    return thoughts;
  }

  void judge(std::vector<Thought>& thoughts) {
    std::vector<Branch> candidates;
    for (Thought& thought : thoughts) candidates.push_back(std::move(thought.branch));
    const std::vector<double> values =
        s_.judge ? s_.judge(session_, candidates) : step_logprobs(candidates);
    check_count("judge", "values", values.size(), candidates.size());
    for (std::size_t i = 0; i < thoughts.size(); ++i) {
      thoughts[i].branch = std::move(candidates[i]);
      thoughts[i].value = values[i];
      tell(SearchEvent::Kind::kJudged, thoughts[i]);
    }
  }

  /// The default judge: mean log-prob of the tokens of each last step.
  std::vector<double> step_logprobs(std::span<const Branch> candidates) const {
    std::vector<double> values;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const auto tokens = static_cast<double>(candidates[i].length() - starts_[i].length);
      values.push_back(tokens > 0 ? (candidates[i].logprob() - starts_[i].logprob) / tokens : 0);
    }
    return values;
  }

  /// Moves the best into the next frontier, frees the others; true when one of them is a solution.
  bool keep_best(std::vector<Thought>& thoughts) {
    std::vector<std::size_t> order(thoughts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto rank = [&](std::size_t i) {  // a judge that could not compute says NaN
      const double value = thoughts[i].value;
      return std::isnan(value) ? -std::numeric_limits<double>::infinity() : value;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return rank(a) > rank(b); });
    const std::size_t kept = std::min(order.size(), static_cast<std::size_t>(s_.width));
    for (std::size_t i = 0; i < kept; ++i) thoughts[order[i]].kept = true;
    const std::size_t first = result_.tree.size();
    for (const Thought& thought : thoughts) {
      result_.tree.push_back(record(thought));
      tell(thought.kept ? SearchEvent::Kind::kKept : SearchEvent::Kind::kPruned, thought);
    }
    frontier_.clear();
    if (kept > 0) best_ = first + order[0];
    for (std::size_t i = 0; i < kept; ++i) {
      Thought& thought = thoughts[order[i]];
      if (s_.solved && s_.solved(thought.branch, thought.text)) {
        tell(SearchEvent::Kind::kSolved, thought);
        trace_path(first + order[i]);
        result_.solved = true;
        result_.finish = Finish::kStop;
        result_.branch = std::move(thought.branch);
        return true;
      }
      frontier_.push_back(std::move(thought.branch));
    }
    return false;
  }

  void trace_path(std::size_t index) {
    for (;;) {
      const ThoughtRecord& step = result_.tree[index];
      result_.path.insert(result_.path.begin(), step);
      const auto parent =
          std::find_if(result_.tree.begin(), result_.tree.end(),
                       [&](const ThoughtRecord& other) { return other.branch == step.parent; });
      if (parent == result_.tree.end()) return;
      index = static_cast<std::size_t>(parent - result_.tree.begin());
    }
  }

  /// Where the step of a proposed thought began.
  struct Start {
    double logprob;
    std::int64_t length;
  };

  Session& session_;
  const TreeOfThoughts& s_;
  std::vector<Branch> frontier_;
  std::vector<Start> starts_;  // of this depth's thoughts
  std::size_t best_ = 0;       // in result_.tree: the first of the frontier
  SearchResult result_;
};

}  // namespace

SearchResult run_tree_of_thoughts(Session& session, Branch root, const TreeOfThoughts& strategy) {
  return Search(session, strategy).run(std::move(root));
}

SearchResult Session::run_tree(const TreeOfThoughts& strategy, std::string_view prompt) {
  return run_tree_of_thoughts(*this, prefill(prompt, {.cancel = strategy.cancel}), strategy);
}

}  // namespace dendrite
