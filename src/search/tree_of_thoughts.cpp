#include <algorithm>

#include "dendrite/search/trees.h"
#include "search/step_run.h"

namespace dendrite {

SearchResult run(Session& session, Branch root, const TreeOfThoughts& s) {
  StepRun run(session, {"tree of thoughts", s.steps, s.solved, s.on_event, s.cancel, s.depth});
  Thought best;  // of the leaves before the last depth
  std::vector<Thought> frontier;
  frontier.push_back(run.start(std::move(root)));
  for (int depth = 1; depth <= s.depth && !frontier.empty() && run.finish() == Finish::kStop;
       ++depth) {
    std::vector<Thought> thoughts = run.grow(pointers(frontier));
    for (Thought& node : frontier) {
      const bool better = !best.branch.valid() || rank(node.value) > rank(best.value);
      if (better && !goes_on(node, thoughts) && run.may_be_leaf(node)) best = std::move(node);
    }
    frontier.clear();
    const std::vector<std::size_t> order = best_first(thoughts);
    const std::size_t kept = std::min(order.size(), static_cast<std::size_t>(std::max(0, s.width)));
    for (std::size_t i = 0; i < kept; ++i) thoughts[order[i]].kept = true;
    for (Thought& thought : thoughts) thought.kept ? run.log().kept(thought) : run.prune(thought);
    for (std::size_t i = 0; i < kept; ++i) {
      Thought& thought = thoughts[order[i]];
      if (run.is_solution(thought)) return run.log().solved(std::move(thought));
      frontier.push_back(std::move(thought));
    }
  }
  const Finish finish = run.finish();
  if (finish != Finish::kStop) return run.log().end(finish);
  if (!frontier.empty() &&
      (!best.branch.valid() || rank(frontier.front().value) > rank(best.value))) {
    best = std::move(frontier.front());
  }
  return run.log().end_at(std::move(best), finish);
}

}  // namespace dendrite
