#pragma once

#include "engine/drafts/paced_provider.h"

namespace dendrite {

/// Speculate::kSuffixDFlash and kSuffixMtp: each lane gets what the session has said where that
/// promises more tokens than the drafts of another have given lately, and asks that one else. (What
/// a text copies may be longer than such a draft, and costs no pass.)
class SuffixPacedProvider final : public DraftProvider {
 public:
  /// The other is the engine's, which outlives this.
  explicit SuffixPacedProvider(PacedProvider& other) : other_(other) {}

  void propose(std::span<LaneDraft* const> drafts, double slack) DENDRITE_COMPUTES override;
  void learn(const LaneDraft& draft, std::int32_t came) DENDRITE_REQUIRES(kComputeLock) override;
  void conclude(const LaneDraft& draft) DENDRITE_REQUIRES(kComputeLock) override;
  void end_turn(double ms) DENDRITE_REQUIRES(kComputeLock) override;
  void remember(BranchState& branch) DENDRITE_COMPUTES override;

 private:
  void ask_suffixes(std::span<LaneDraft* const> drafts, double slack) DENDRITE_COMPUTES;

  PacedProvider& other_;
  std::vector<DraftProvider*> suffixes_;  // that were asked in this turn
};

}  // namespace dendrite
