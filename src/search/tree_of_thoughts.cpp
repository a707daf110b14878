#include <algorithm>

#include "dendrite/search/trees.h"
#include "search/step_run.h"

namespace dendrite {

SearchResult run(Session& session, Branch root, const TreeOfThoughts& s) {
  StepRun run(session, {"tree of thoughts", s.steps, s.solved, s.on_event, s.cancel, s.depth});
  std::vector<Thought> frontier;
  frontier.push_back(run.start(std::move(root)));
  for (int depth = 1; depth <= s.depth && !frontier.empty() && run.finish() == Finish::kStop;
       ++depth) {
    std::vector<Thought> thoughts = run.grow(pointers(frontier));
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
  if (finish != Finish::kStop || frontier.empty()) return run.log().end(finish);
  return run.log().end_at(std::move(frontier.front()), finish);
}

}  // namespace dendrite
