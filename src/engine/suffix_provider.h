#pragma once

#include "draft/suffix_drafter.h"
#include "engine/draft_provider.h"
#include "engine/engine_core.h"

namespace dendrite {

/// Speculate::kSuffix: what a session's branches have said.
class SuffixProvider final : public DraftProvider {
 public:
  explicit SuffixProvider(EngineCore& engine) : engine_(engine) {}

  void propose(std::span<LaneDraft* const> drafts, double slack) DENDRITE_COMPUTES override;
  void learn(const LaneDraft& draft, std::int32_t came) DENDRITE_REQUIRES(kComputeLock) override;
  void remember(BranchState& branch) DENDRITE_COMPUTES override { place_of(branch); }

 private:
  History::Place place_of(BranchState& branch) DENDRITE_COMPUTES;

  EngineCore& engine_;
  SuffixDrafter drafter_;
};

/// The session's own, made when it is first asked for.
DraftProvider& suffixes_of(SessionCore& session) DENDRITE_REQUIRES(kComputeLock);

}  // namespace dendrite
