#pragma once

#include "draft/suffix_drafter.h"
#include "engine/branches/draft_provider.h"
#include "engine/branches/engine_core.h"

namespace dendrite {

/// Speculate::kSuffix: what a session's branches have said. Nothing of it is lost where it does not
/// look: what was said meanwhile is remembered when it next does.
class SuffixProvider final : public DraftProvider {
 public:
  explicit SuffixProvider(EngineCore& engine) : engine_(engine) {}

  bool rests() DENDRITE_REQUIRES(kComputeLock) override;
  void propose(std::span<LaneDraft* const> drafts, double slack) DENDRITE_COMPUTES override;
  void learn(const LaneDraft& draft, std::int32_t came) DENDRITE_REQUIRES(kComputeLock) override;
  void conclude(const LaneDraft& draft) DENDRITE_REQUIRES(kComputeLock) override;
  void end_turn(double ms) DENDRITE_REQUIRES(kComputeLock) override;
  void remember(BranchState& branch) DENDRITE_COMPUTES override { place_of(branch); }

 private:
  History::Place place_of(BranchState& branch) DENDRITE_COMPUTES;

  EngineCore& engine_;
  SuffixDrafter drafter_;
  // Looking costs time, too: where nothing comes of it, it is done less often.
  double propose_ms_ = 0;     // when it last looked
  bool any_picked_ = false;   // of what it proposed in this turn
  std::int64_t resting_ = 0;  // times that it will not look
};

/// The session's own, made when it is first asked for.
DraftProvider& suffixes_of(SessionCore& session) DENDRITE_REQUIRES(kComputeLock);

}  // namespace dendrite
