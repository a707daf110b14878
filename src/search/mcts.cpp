#include "dendrite/search/mcts.h"

#include <chrono>
#include <cmath>
#include <deque>
#include <limits>

#include "dendrite/error.h"
#include "search/step_run.h"

namespace dendrite {
namespace {

/// A thought of the tree with what was backed up through it.
struct Node {
  Thought thought;
  Node* parent = nullptr;
  std::vector<Node*> children;  // in the order of proposal
  double prior = 1;             // among its siblings
  double total = 0;
  int in_flight = 0;  // descents of this round that go through it
  bool opened = false;
  std::optional<double> fixed;  // the value of every visit: nothing comes after it

  double mean() const {
    return thought.visits > 0 ? total / static_cast<double>(thought.visits) : 0;
  }
};

double token_probability(const Thought& thought) {
  return std::exp(mean_logprob(thought));
}

class MctsRun {
 public:
  MctsRun(Session& session, const Mcts& strategy)
      : session_(session),
        s_(strategy),
        run_(session,
             {"mcts", s_.steps, s_.solved, s_.on_event, s_.cancel, s_.depth, token_probability}),
        tokens_before_(session.stats().tokens_computed),
        begin_(std::chrono::steady_clock::now()) {
    if (s_.batch < 1 || s_.iterations < 0 || s_.rollouts < 0 || s_.depth < 1) {
      throw Error("mcts: batch is " + std::to_string(s_.batch) + ", iterations " +
                  std::to_string(s_.iterations) + ", rollouts " + std::to_string(s_.rollouts) +
                  ", depth " + std::to_string(s_.depth) +
                  "; expected batch and depth >= 1, the others >= 0");
    }
  }

  SearchResult run(Branch root) {
    nodes_.emplace_back().thought = run_.start(std::move(root));
    while (done_ < s_.iterations && finish() == Finish::kStop) {
      if (std::optional<Thought> solution = round()) return run_.log().solved(std::move(*solution));
    }
    return best_path();
  }

 private:
  Finish finish() {
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - begin_;
    const std::int64_t tokens = session_.stats().tokens_computed - tokens_before_;
    if ((s_.budget.tokens > 0 && tokens >= s_.budget.tokens) ||
        (s_.budget.milliseconds > 0 && spent.count() >= s_.budget.milliseconds)) {
      run_.cut_short(Finish::kBudget);
    }
    return run_.finish();
  }

  /// One round; the solution, when one turned up.
  std::optional<Thought> round() {
    std::vector<Node*> fresh;    // to be judged
    std::vector<Node*> waiting;  // one for each descent that has to open its end
    descend(fresh, waiting);
    if (std::optional<Thought> solution = open(waiting)) return solution;
    for (Node* node : waiting) go_on(*node, fresh);
    return judge(fresh);
  }

  void descend(std::vector<Node*>& fresh, std::vector<Node*>& waiting) {
    const int descents = std::min(s_.batch, s_.iterations - done_);
    for (int i = 0; i < descents; ++i) {
      Node* node = &nodes_.front();
      while (node->opened && !node->fixed) {
        Node* next = best_child(*node);
        ++node->in_flight;
        node = next;
      }
      ++node->in_flight;
      if (node->fixed) {
        back_up(*node, *node->fixed);
      } else if (node->parent == nullptr || node->thought.visits > 0) {
        waiting.push_back(node);
      } else if (node->in_flight == 1) {
        fresh.push_back(node);
      } else {  // all that is left to see is under way
        release(*node);
        return;
      }
    }
  }

  Node* best_child(const Node& node) const {
    Node* best = nullptr;
    double best_score = 0;
    const std::int64_t parent_visits = node.thought.visits + node.in_flight;
    for (Node* child : node.children) {
      const std::int64_t visits = child->thought.visits + child->in_flight;
      const double mean =
          visits > 0 ? (child->total + s_.loss * child->in_flight) / static_cast<double>(visits)
                     : 0;
      const double score =
          s_.rule == Mcts::Rule::kUct
              ? uct_score(mean, visits, parent_visits, s_.exploration)
              : puct_score(mean, child->prior, visits, parent_visits, s_.exploration);
      if (best != nullptr && score <= best_score) continue;
      best = child;
      best_score = score;
    }
    return best;
  }

  /// Opens the ends of descents, all in one batch.
  std::optional<Thought> open(const std::vector<Node*>& waiting) {
    std::vector<Thought*> thoughts;
    std::vector<Node*> parents;
    for (Node* node : waiting) {
      if (std::exchange(node->opened, true)) continue;
      parents.push_back(node);
      thoughts.push_back(&node->thought);
      if (node->parent != nullptr) run_.log().kept(node->thought);
    }
    if (thoughts.empty()) return std::nullopt;
    for (Thought& thought : run_.propose(thoughts)) {
      Node& child = nodes_.emplace_back();
      child.thought = std::move(thought);
      child.parent = &nodes_[static_cast<std::size_t>(child.thought.parent)];
      child.parent->children.push_back(&child);
      child.prior = run_.prior(child.thought);
      if (!run_.is_solution(child.thought)) continue;
      run_.log().kept(child.thought);
      return std::move(child.thought);
    }
    for (Node* parent : parents) {
      double sum = 0;
      for (const Node* child : parent->children) sum += child->prior;
      for (Node* child : parent->children) {
        child->prior =
            sum > 0 ? child->prior / sum : 1 / static_cast<double>(parent->children.size());
      }
    }
    return std::nullopt;
  }

  /// Takes a descent from an opened end to one of its children.
  void go_on(Node& node, std::vector<Node*>& fresh) {
    if (node.children.empty()) {
      if (run_.finish() != Finish::kStop) return release(node);  // not known to be a dead end
      node.fixed = run_.may_be_leaf(node.thought) ? node.mean() : s_.loss;
      return back_up(node, *node.fixed);
    }
    Node& child = *best_child(node);
    if (child.in_flight > 0) return release(node);  // more descents than children
    ++child.in_flight;
    fresh.push_back(&child);
  }

  std::optional<Thought> judge(const std::vector<Node*>& fresh) {
    std::vector<Thought*> direct;
    std::vector<Node*> rolled;
    for (Node* node : fresh) {
      if (s_.rollouts > 0 && node->thought.depth < s_.depth) {
        rolled.push_back(node);
      } else {
        direct.push_back(&node->thought);
      }
    }
    run_.judge(direct);
    if (std::optional<Thought> solution = roll_out(rolled)) return solution;
    for (Node* node : fresh) {
      const double value = std::isnan(node->thought.value) ? s_.loss : node->thought.value;
      if (node->thought.depth == s_.depth) node->fixed = value;
      back_up(*node, value);
    }
    return std::nullopt;
  }

  /// Values of thoughts by continuations sampled from them; a continuation that is a solution.
  std::optional<Thought> roll_out(const std::vector<Node*>& nodes) {
    if (nodes.empty()) return std::nullopt;
    // From a fork with a stream of its own: steps that are sampled from the node later draw what
    // they would without rollouts.
    constexpr std::uint64_t kRollouts = 0x6C6C6F7574526F6C;
    std::vector<Branch> branches;
    for (Node* node : nodes) {
      Branch& branch = node->thought.branch;
      Branch start = branch.fork({.stream = branch.stream() ^ kRollouts});
      for (Branch& fork : start.fork(s_.rollouts)) branches.push_back(std::move(fork));
    }
    DecodeParams params = s_.rollout;
    params.cancel = s_.cancel;
    const std::vector<Generation> out = session_.decode(branches, params);
    const auto per_node = static_cast<std::size_t>(s_.rollouts);
    std::vector<Thought> ends;
    for (std::size_t i = 0; i < branches.size(); ++i) {
      const Thought& from = nodes[i / per_node]->thought;
      if (was_cut_short(out[i].finish)) run_.cut_short(out[i].finish);
      Thought& end = ends.emplace_back();
      end.node = end.parent = from.node;
      end.depth = from.depth + 1;
      end.text = out[i].text;
      end.tokens = branches[i].length() - from.branch.length();
      end.logprob = branches[i].logprob() - from.branch.logprob();
      end.branch = std::move(branches[i]);
      if (out[i].ids.empty()) {  // its text can only end: it is the thought that is judged
        static_cast<ThoughtRecord&>(end) = from;
        continue;
      }
      if (!run_.is_solution(end)) continue;
      run_.log().proposed(end);
      run_.log().kept(end);
      return std::move(end);
    }
    const std::vector<double> values = run_.values_of(pointers(ends));
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      double sum = 0;
      for (std::size_t k = 0; k < per_node; ++k) sum += values[i * per_node + k];
      run_.log().judged(nodes[i]->thought, sum / s_.rollouts);
    }
    return std::nullopt;
  }

  void back_up(Node& leaf, double value) {
    ++done_;
    for (Node* node = &leaf; node != nullptr; node = node->parent) {
      --node->in_flight;
      node->total += value;
      ++node->thought.visits;
      if (node->parent == nullptr) break;
      node->thought.value = node->mean();
      node->thought.branch.set_priority(priority_of(node->thought.value));
      run_.log().visited(node->thought);
    }
  }

  static void release(Node& leaf) {
    for (Node* node = &leaf; node != nullptr; node = node->parent) --node->in_flight;
  }

  SearchResult best_path() {
    Node* node = &nodes_.front();
    for (;;) {
      Node* best = nullptr;
      for (Node* child : node->children) {
        if (child->thought.visits == 0) continue;
        const bool better =
            best == nullptr || child->thought.visits > best->thought.visits ||
            (child->thought.visits == best->thought.visits && child->mean() > best->mean());
        if (better) best = child;
      }
      if (best == nullptr) break;
      node = best;
    }
    const Finish finish = run_.finish();
    if (node->parent == nullptr) return run_.log().end(finish);
    if (!node->thought.kept) run_.log().kept(node->thought);
    return run_.log().end_at(std::move(node->thought), finish);
  }

  Session& session_;
  const Mcts& s_;
  StepRun run_;
  std::int64_t tokens_before_;
  std::chrono::steady_clock::time_point begin_;
  std::deque<Node> nodes_;  // by NodeId; addresses never move
  int done_ = 0;
};

}  // namespace

double uct_score(double mean, std::int64_t visits, std::int64_t parent_visits, double exploration) {
  if (visits == 0) return std::numeric_limits<double>::infinity();
  const auto parent = static_cast<double>(std::max<std::int64_t>(1, parent_visits));
  return mean + exploration * std::sqrt(std::log(parent) / static_cast<double>(visits));
}

double puct_score(double mean, double prior, std::int64_t visits, std::int64_t parent_visits,
                  double exploration) {
  const auto parent = static_cast<double>(std::max<std::int64_t>(1, parent_visits));
  return mean + exploration * prior * std::sqrt(parent) / static_cast<double>(1 + visits);
}

SearchResult run(Session& session, Branch root, const Mcts& strategy) {
  return MctsRun(session, strategy).run(std::move(root));
}

}  // namespace dendrite
