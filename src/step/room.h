#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/kv_tree.h"
#include "kv/memories.h"
#include "step/host.h"
#include "step/locks.h"
#include "step/request.h"

namespace dendrite {

/// Makes room when pages run out. Takes K and V, never tokens: whoever lost them gets the same ones
/// again at its next use, so this decides how long things take and nothing else. In this order:
///   1. remembered compositions, prompts and chunks that nobody holds (Memories); for optional
///      requests nothing else
///   2. lowest priority first: holders that do not run, least recently used first, those in a call
///      last, then running ones of a lower priority than the one that asks
///   3. all that is remembered: their pages go on being held by branches, but a branch whose prompt
///      nobody else holds can write its own last page in place
/// Holders on hold that do not run keep theirs, what they share with others, and what they wait
/// for. A round over very many holders takes more than was asked, so that the next need none. One
/// for each step.
class Room {
 public:
  /// All that has a request runs.
  Room(KvTree& tree, const Memories& memories, StepHost& host,
       std::span<const StepRequest> requests, std::span<StepOutcome> outcomes)
      : tree_(tree), memories_(memories), host_(host), requests_(requests), outcomes_(outcomes) {}

  /// See StepPlan::MakeRoom. Counts evictions and preemptions into the outcomes.
  void make_room(std::int64_t pages, std::size_t request, bool alone) DENDRITE_REQUIRES(kTreeLock);

 private:
  struct Candidate {
    const Tip* tip = nullptr;
    int priority = 0;
    bool running = false;
    bool in_call = false;
    std::uint64_t last_used = 0;
    std::size_t request = 0;  // of one that runs: the last goes first
    std::uint64_t claim = 0;  // on the segments that nobody more valued needs
  };

  bool enough(std::int64_t pages) const { return tree_.pool().free_pages() >= pages; }
  void take_from_others(std::int64_t pages, std::size_t request, bool alone)
      DENDRITE_REQUIRES(kTreeLock);
  void claim_all(std::size_t request, bool alone) DENDRITE_REQUIRES(kTreeLock);
  void evict(const Candidate& candidate, std::int64_t pages) DENDRITE_REQUIRES(kTreeLock);
  void collect() DENDRITE_REQUIRES(kTreeLock);

  KvTree& tree_;
  Memories memories_;
  StepHost& host_;
  std::span<const StepRequest> requests_;
  std::span<StepOutcome> outcomes_;
  std::vector<Candidate> candidates_;  // in the order in which they go; collected at first need
  std::vector<const Tip*> held_;       // of those who keep what they have; collected with them
  bool collected_ = false;
  bool has_forgotten_ = false;
  std::uint64_t own_ = 0;         // the claim of the one that asks
  std::optional<int> exhausted_;  // the priority for which all that may go has gone
};

}  // namespace dendrite
