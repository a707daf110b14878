#include "step/room.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace dendrite {

void Room::make_room(std::int64_t pages, std::size_t request, bool alone) {
  const std::int64_t segments = tree_.stats().evicted_segments;
  const std::int32_t used = tree_.pool().used_pages();
  bool forgets = false;
  while (!enough(pages) && memories_.evict_one()) forgets = true;
  if (forgets && !std::exchange(has_forgotten_, true)) host_.on_pressure(Pressure::kSoft);
  host_.on_forgotten(used);
  const StepRequest& asking = requests_[request];
  if (enough(pages) || asking.optional) return;
  // Where one found nothing more to take, one of no higher priority finds nothing either.
  if (!alone && exhausted_ && asking.priority <= *exhausted_) return;
  take_from_others(pages, request, alone);
  outcomes_[request].evictions += tree_.stats().evicted_segments - segments;
}

void Room::take_from_others(std::int64_t pages, std::size_t request, bool alone) {
  const StepRequest& asking = requests_[request];
  if (!collected_) {
    collect();
    host_.on_pressure(Pressure::kHard);
  }
  claim_all(request, alone);
  // The claims took a walk over all branches. So that the next pages need none, idle branches of no
  // higher priority give some more: a page for each thousand branches that were looked at.
  constexpr std::int64_t kBranchesPerPage = 1000;
  const std::int64_t plenty = pages + std::ssize(candidates_) / kBranchesPerPage;
  for (const Candidate& candidate : candidates_) {
    const bool idle = !candidate.running && !candidate.in_call;
    const std::int64_t goal = idle && candidate.priority <= asking.priority ? plenty : pages;
    if (enough(goal)) return;
    evict(candidate, goal);
  }
  if (enough(pages)) return;
  const std::int32_t used = tree_.pool().used_pages();
  memories_.clear();
  host_.on_forgotten(used);
  if (!alone) {
    exhausted_ = asking.priority;
  } else if (!enough(pages)) {
    // Its own pages: where forks that are gone split its chain inside a page, each part has a copy
    // of that page; pending parts that nobody else refers to become one, with fewer pages.
    tree_.evict(*asking.tip, own_, tree_.pool().size());
  }
}

void Room::claim_all(std::size_t request, bool alone) {
  const StepRequest& asking = requests_[request];
  tree_.begin_eviction();
  for (const Tip* tip : held_) tree_.claim(*tip);
  own_ = tree_.claim(*asking.tip);
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const StepRequest& other = requests_[i];
    // Those before the one that asks are planned, or wait as well.
    const bool keeps = !alone && (i < request || other.priority >= asking.priority);
    if (keeps) tree_.claim(*other.tip);
  }
  for (auto candidate = candidates_.rbegin(); candidate != candidates_.rend(); ++candidate) {
    candidate->claim = tree_.claim(*candidate->tip);
  }
}

void Room::evict(const Candidate& candidate, std::int64_t pages) {
  const std::int64_t tokens = tree_.stats().evicted_tokens;
  const std::int32_t used = tree_.pool().used_pages();
  if (!tree_.evict(*candidate.tip, candidate.claim, pages)) return;
  if (candidate.running) ++outcomes_[candidate.request].preemptions;
  host_.on_evicted(*candidate.tip, candidate.running, tree_.stats().evicted_tokens - tokens, used);
}

void Room::collect() {
  collected_ = true;
  std::unordered_map<const Tip*, std::size_t> running;
  for (std::size_t i = 0; i < requests_.size(); ++i) running.try_emplace(requests_[i].tip, i);
  std::vector<Holder> holders;
  host_.collect_holders(holders);
  for (const Holder& holder : holders) {
    const auto request = running.find(holder.tip);
    if (request != running.end()) {
      candidates_.push_back({.tip = holder.tip,
                             .priority = requests_[request->second].priority,
                             .running = true,
                             .request = request->second});
    } else if (holder.on_hold) {
      held_.push_back(holder.tip);
    } else {
      candidates_.push_back({.tip = holder.tip,
                             .priority = holder.priority,
                             .in_call = holder.in_call,
                             .last_used = holder.last_used});
    }
  }
  // Sources of what nobody computes now: nobody's, but for those that wait for them.
  tree_.for_each_source([&](const Tip& tip) {
    if (!running.contains(&tip)) {
      candidates_.push_back({.tip = &tip, .priority = std::numeric_limits<int>::min()});
    }
  });
  // Chunks in use: after all that is idle.
  std::vector<const Tip*> chunks;
  if (memories_.chunks != nullptr) memories_.chunks->collect_tips(chunks);
  for (const Tip* tip : chunks) {
    candidates_.push_back({.tip = tip, .priority = std::numeric_limits<int>::max()});
  }
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.priority, a.running, a.in_call, a.last_used, b.request) <
           std::tie(b.priority, b.running, b.in_call, b.last_used, a.request);
  });
}

}  // namespace dendrite
