#include <algorithm>

#include "dendrite/error.h"
#include "dendrite/search/trees.h"
#include "search/step_run.h"

namespace dendrite {

SearchResult run(Session& session, Branch root, const BestFirst& s) {
  if (s.batch < 1) {
    throw Error("best-first: batch is " + std::to_string(s.batch) + "; expected >= 1");
  }
  StepRun run(session, {"best-first", s.steps, s.solved, s.on_event, s.cancel, s.depth});
  std::vector<Thought> frontier;  // best first; equal ones in the order of proposal
  frontier.push_back(run.start(std::move(root)));
  Thought best;  // of the leaves
  const auto end_at = [&](Thought leaf) {
    if (best.branch.valid() && rank(leaf.value) <= rank(best.value)) return run.prune(leaf);
    if (best.branch.valid()) run.prune(best);
    best = std::move(leaf);
  };
  std::int64_t expanded = 0;
  while (!frontier.empty() && run.finish() == Finish::kStop && s.depth > 0 &&
         (s.max_expansions == 0 || expanded < s.max_expansions)) {
    std::size_t batch = std::min(frontier.size(), static_cast<std::size_t>(s.batch));
    if (s.max_expansions > 0) {
      batch = std::min(batch, static_cast<std::size_t>(s.max_expansions - expanded));
    }
    std::vector<Thought*> nodes = pointers(std::span(frontier).first(batch));
    for (Thought* node : nodes) {
      if (node->node != NodeId::kRoot) run.log().kept(*node);
    }
    std::vector<Thought> children = run.grow(nodes);
    expanded += static_cast<std::int64_t>(batch);
    for (Thought* node : nodes) {
      if (!goes_on(*node, children) && run.may_be_leaf(*node)) end_at(std::move(*node));
    }
    frontier.erase(frontier.begin(), frontier.begin() + static_cast<std::ptrdiff_t>(batch));
    for (const std::size_t i : best_first(children)) {
      if (!run.is_solution(children[i])) continue;
      run.log().kept(children[i]);
      return run.log().solved(std::move(children[i]));
    }
    for (Thought& child : children) {
      if (child.depth < s.depth) {
        frontier.push_back(std::move(child));
      } else {
        end_at(std::move(child));
      }
    }
    std::stable_sort(frontier.begin(), frontier.end(), [](const Thought& a, const Thought& b) {
      return rank(a.value) > rank(b.value);
    });
    while (s.max_frontier > 0 && std::ssize(frontier) > s.max_frontier) {
      run.prune(frontier.back());
      frontier.pop_back();
    }
  }
  if (best.branch.valid() && !best.kept) run.log().kept(best);
  return run.log().end_at(std::move(best), run.finish());
}

}  // namespace dendrite
