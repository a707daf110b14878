#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/locks.h"
#include "engine/step_plan.h"
#include "kv/kv_tree.h"

namespace dendrite {

struct EngineCore;

/// Makes room when pages run out. Takes K and V, never tokens: whoever lost them gets the same ones
/// again at its next use, so this decides how long things take and nothing else. In this order:
///   1. remembered prompts that no branch holds, least recently used first; for optional requests
///      nothing else
///   2. lowest priority first: branches that do not run, least recently used first, then running
///      ones of a lower priority than the one that asks
///   3. all remembered prompts: their pages go on being held by branches, but a branch whose prompt
///      nobody else holds can write its own last page in place
/// Branches on hold that do not run keep theirs, and what they share with others.
/// A round over very many branches takes more than was asked, so that the next need none. One for
/// each step.
class Evictor {
 public:
  /// `requests`: of the step; their tips run unless they are kServed.
  Evictor(EngineCore& engine, std::span<const StepRequest> requests)
      : engine_(engine), requests_(requests) {}

  /// See StepPlan::MakeRoom.
  void make_room(std::int64_t pages, std::size_t request, bool alone) DENDRITE_REQUIRES(kTreeLock);

  /// Running requests that lost pages.
  std::int64_t preemptions() const { return preemptions_; }

 private:
  struct Candidate {
    const Tip* tip = nullptr;
    const BranchState* branch = nullptr;
    int priority = 0;
    bool running = false;
    std::uint64_t last_used = 0;
    std::int64_t order = 0;   // of requests: the last goes first
    std::uint64_t claim = 0;  // on the segments that nobody more valued needs
  };

  bool enough(std::int64_t pages) const DENDRITE_REQUIRES(kTreeLock);
  void evict(const Candidate& candidate, std::int64_t pages) DENDRITE_REQUIRES(kTreeLock);
  void collect() DENDRITE_REQUIRES(kTreeLock);

  EngineCore& engine_;
  std::span<const StepRequest> requests_;
  std::vector<Candidate> candidates_;  // in the order in which they go; collected at first need
  std::vector<const Tip*> held_;       // of branches that keep what they have; collected with them
  bool collected_ = false;
  std::optional<int> exhausted_;  // the priority for which all that may go has gone
  std::int64_t preemptions_ = 0;
};

}  // namespace dendrite
