#include "engine/evictor.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>

#include "engine/engine_core.h"
#include "engine/session_core.h"
#include "engine/tell.h"

namespace dendrite {

bool Evictor::enough(std::int64_t pages) const {
  return engine_.tree->pool().free_pages() >= pages;
}

void Evictor::make_room(std::int64_t pages, std::size_t request, bool alone) {
  KvTree& tree = *engine_.tree;
  PrefixIndex* index = engine_.prefix_index.get();
  std::int32_t used = tree.pool().used_pages();
  while (!enough(pages) && index != nullptr && index->evict_one()) {
  }
  tell_forget(engine_, used);
  const StepRequest& asking = requests_[request];
  if (enough(pages) || asking.optional) return;

  // Where one found nothing more to take, one of no higher priority finds nothing either.
  if (!alone && exhausted_ && asking.priority <= *exhausted_) return;
  if (!collected_) collect();
  tree.begin_eviction();
  for (const Tip* tip : held_) tree.claim(*tip);
  const std::uint64_t own = tree.claim(*asking.tip);
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const StepRequest& other = requests_[i];
    const bool runs = other.state == StepRequest::State::kOpen;
    // Those before the one that asks are planned, or wait as well.
    const bool keeps = !alone && runs && (i < request || other.priority >= asking.priority);
    if (keeps) tree.claim(*other.tip);
  }
  for (auto candidate = candidates_.rbegin(); candidate != candidates_.rend(); ++candidate) {
    candidate->claim = tree.claim(*candidate->tip);
  }
  // The claims took a walk over all branches. So that the next pages need none, idle branches of no
  // higher priority give some more: a page for each thousand branches that were looked at.
  constexpr std::int64_t kBranchesPerPage = 1000;
  const std::int64_t plenty = pages + std::ssize(candidates_) / kBranchesPerPage;
  for (const Candidate& candidate : candidates_) {
    const bool cheap = !candidate.running && candidate.priority <= asking.priority;
    const std::int64_t goal = cheap ? plenty : pages;
    if (enough(goal)) return;
    evict(candidate, goal);
  }
  if (enough(pages)) return;
  used = tree.pool().used_pages();
  if (index != nullptr) index->clear();
  tell_forget(engine_, used);
  if (!alone) {
    exhausted_ = asking.priority;
  } else if (!enough(pages)) {
    // Its own pages: where forks that are gone split its chain inside a page, each part has a copy
    // of that page; pending parts that nobody else refers to become one, with fewer pages.
    tree.evict(*asking.tip, own, tree.pool().size());
  }
}

void Evictor::evict(const Candidate& candidate, std::int64_t pages) {
  KvTree& tree = *engine_.tree;
  const std::int64_t tokens = tree.stats().evicted_tokens;
  const std::int32_t used = tree.pool().used_pages();
  if (!tree.evict(*candidate.tip, candidate.claim, pages)) return;
  if (candidate.running) ++preemptions_;
  if (candidate.branch == nullptr) return;
  tell_evict(*candidate.branch, candidate.running, tree.stats().evicted_tokens - tokens, used);
}

void Evictor::collect() {
  collected_ = true;
  std::unordered_set<const Tip*> running;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const StepRequest& request = requests_[i];
    const bool runs = request.state == StepRequest::State::kOpen;
    if (runs) running.insert(request.tip);
    candidates_.push_back({.tip = request.tip,
                           .branch = request.branch,
                           .priority = request.priority,
                           .running = runs,
                           .order = -static_cast<std::int64_t>(i)});
  }
  const EngineTime now = engine_.now();
  for (const SessionCore* session : engine_.sessions) {
    for (const BranchState& branch : session->slab) {
      if (branch.tip.empty() || running.contains(&branch.tip)) continue;
      if (branch.held_until > now) {
        held_.push_back(&branch.tip);
        continue;
      }
      candidates_.push_back({.tip = &branch.tip,
                             .branch = &branch,
                             .priority = branch.priority,
                             .last_used = branch.last_used});
    }
  }
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.priority, a.running, a.last_used, a.order) <
           std::tie(b.priority, b.running, b.last_used, b.order);
  });
}

}  // namespace dendrite
