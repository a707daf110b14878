#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "draft/block_drafter.h"
#include "engine/branches/call_tips.h"
#include "engine/branches/engine_core.h"
#include "engine/drafts/paced_provider.h"
#include "step/block_pass.h"

namespace dendrite {

/// Speculate::kDFlash and kDFlashTree: a block drafter, which reads along with the model and fills
/// masks after a text in one pass. Its context lies in the tree's own pages, so forks share it.
class BlockProvider final : public PacedProvider {
 public:
  /// Requires: the engine has a drafter and its store.
  BlockProvider(EngineCore& engine, StepHost& host) DENDRITE_REQUIRES(kTreeLock);

 protected:
  std::vector<LaneDraft*> choose(std::span<LaneDraft* const> wanted) DENDRITE_COMPUTES override;
  void fill(std::span<LaneDraft* const> drafts, std::int64_t depth) DENDRITE_COMPUTES override;
  void tidy(bool failed) DENDRITE_REQUIRES(kComputeLock) override;

 private:
  void fill_alike(std::span<LaneDraft* const> drafts, std::int64_t depth) DENDRITE_COMPUTES;
  DraftLimits limits_of(const LaneDraft& draft, std::int64_t depth) const;

  BlockPass pass_;
  BlockDrafter drafter_;
  CallTips tips_;            // of blocks
  std::int64_t filled_ = 0;  // drafts so far
};

}  // namespace dendrite
