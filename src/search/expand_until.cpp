#include <cmath>

#include "dendrite/search/common.h"

namespace dendrite {

Proposals expand_until(Session& session, std::span<Branch> nodes, Token stop, double min_prob,
                       std::int64_t max_tokens, std::stop_token cancel) {
  std::vector<double> start;  // log-prob of each node: what its continuations are measured from
  std::vector<Branch> heads;
  std::vector<std::size_t> origin;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    start.push_back(nodes[i].logprob());
    // In the node's place, and with its stream: the children are those of the node itself.
    heads.push_back(nodes[i].fork({.stream = nodes[i].stream()}));
    origin.push_back(i);
  }
  Proposals done;
  done.children.resize(nodes.size());
  for (std::int64_t step = 0; step < max_tokens && !heads.empty(); ++step) {
    std::vector<std::vector<Branch>> children =
        session.expand(heads, {.min_prob = min_prob, .cancel = cancel});
    std::vector<Branch> next;
    std::vector<std::size_t> next_origin;
    for (std::size_t i = 0; i < heads.size(); ++i) {
      const Finish finish = heads[i].finish();
      if (finish == Finish::kBudget || finish == Finish::kCancelled) done.finish = finish;
      for (Branch& child : children[i]) {
        // A continuation below the bar can never rise above it.
        if (child.logprob() - start[origin[i]] < std::log(min_prob)) continue;
        if (child.last_token() == stop) {
          done.children[origin[i]].push_back(std::move(child));
        } else {
          next.push_back(std::move(child));
          next_origin.push_back(origin[i]);
        }
      }
    }
    heads = std::move(next);
    origin = std::move(next_origin);
  }
  return done;
}

}  // namespace dendrite
