#include <algorithm>

#include "dendrite/search/trees.h"
#include "search/step_run.h"

namespace dendrite {
namespace {

/// A thought that was entered, and its children that were not yet, the best last.
struct Level {
  Thought thought;
  std::vector<Thought> waiting;
};

/// A thought's children, judged.
std::vector<Thought> children_of(StepRun& run, Thought& thought) {
  Thought* const node = &thought;
  return run.grow({&node, 1});
}

/// Those worth entering.
std::vector<Thought> choose(StepRun& run, std::vector<Thought> children, const DepthFirst& s) {
  std::vector<Thought> waiting;
  for (const std::size_t i : best_first(children)) {
    const bool enters = std::ssize(waiting) < s.width && rank(children[i].value) >= s.threshold;
    if (enters) {
      waiting.push_back(std::move(children[i]));
    } else {
      run.prune(children[i]);
    }
  }
  std::reverse(waiting.begin(), waiting.end());
  return waiting;
}

}  // namespace

SearchResult run(Session& session, Branch root, const DepthFirst& s) {
  StepRun run(session, {"depth-first", s.steps, s.solved, s.on_event, s.cancel, s.depth});
  std::vector<Level> path(1);
  path[0].thought = run.start(std::move(root));
  if (run.finish() == Finish::kStop && s.depth > 0) {
    path[0].waiting = choose(run, children_of(run, path[0].thought), s);
  }
  Thought best;  // of the leaves
  std::int64_t entered = 0;
  while (!path.empty() && run.finish() == Finish::kStop &&
         (s.max_nodes == 0 || entered < s.max_nodes)) {
    Level& level = path.back();
    if (level.waiting.empty()) {  // back
      if (level.thought.node != NodeId::kRoot) run.prune(level.thought);
      path.pop_back();
      continue;
    }
    Thought thought = std::move(level.waiting.back());
    level.waiting.pop_back();
    ++entered;
    run.log().kept(thought);
    if (run.is_solution(thought)) return run.log().solved(std::move(thought));
    bool is_leaf = thought.depth == s.depth;
    std::vector<Thought> children;
    if (!is_leaf) {
      children = children_of(run, thought);
      is_leaf = children.empty() && run.may_be_leaf(thought);
    }
    if (!is_leaf) {
      path.push_back({std::move(thought), choose(run, std::move(children), s)});
    } else if (!best.branch.valid() || rank(thought.value) > rank(best.value)) {
      if (best.branch.valid()) run.prune(best);
      best = std::move(thought);
    } else {
      run.prune(thought);
    }
  }
  return run.log().end_at(std::move(best), run.finish());
}

}  // namespace dendrite
