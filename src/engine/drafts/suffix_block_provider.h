#pragma once

#include "engine/drafts/block_provider.h"

namespace dendrite {

/// Speculate::kSuffixDFlash: each lane gets what the session has said where that promises more
/// tokens than the block drafter's drafts have given lately, and asks the drafter else. (What a
/// text copies may be longer than a block, and costs no pass.)
class SuffixBlockProvider final : public DraftProvider {
 public:
  /// The block provider is the engine's, which outlives this.
  explicit SuffixBlockProvider(BlockProvider& blocks) : blocks_(blocks) {}

  void propose(std::span<LaneDraft* const> drafts, double slack) DENDRITE_COMPUTES override;
  void learn(const LaneDraft& draft, std::int32_t came) DENDRITE_REQUIRES(kComputeLock) override;
  void conclude(const LaneDraft& draft) DENDRITE_REQUIRES(kComputeLock) override;
  void end_turn(double ms) DENDRITE_REQUIRES(kComputeLock) override;
  void remember(BranchState& branch) DENDRITE_COMPUTES override;

 private:
  void ask_suffixes(std::span<LaneDraft* const> drafts, double slack) DENDRITE_COMPUTES;

  BlockProvider& blocks_;
  std::vector<DraftProvider*> suffixes_;  // that were asked in this turn
};

}  // namespace dendrite
