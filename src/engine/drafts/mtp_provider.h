#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "draft/chain_drafter.h"
#include "engine/branches/call_tips.h"
#include "engine/branches/engine_core.h"
#include "engine/drafts/paced_provider.h"
#include "step/mtp_pass.h"

namespace dendrite {

/// Speculate::kMtp: the model's own head that predicts one token further, which reads along with
/// it. It drafts token after token, drawn by the numbers that the branch will draw by, in the
/// tree's own pages.
class MtpProvider final : public PacedProvider {
 public:
  /// Requires: the engine has the head and its store.
  MtpProvider(EngineCore& engine, StepHost& host) DENDRITE_REQUIRES(kTreeLock);

 protected:
  std::vector<LaneDraft*> choose(std::span<LaneDraft* const> wanted) DENDRITE_COMPUTES override;
  void fill(std::span<LaneDraft* const> drafts, std::int64_t depth) DENDRITE_COMPUTES override;
  void tidy(bool failed) DENDRITE_REQUIRES(kComputeLock) override;

 private:
  MtpAsk ask_of(const LaneDraft& draft) const;

  MtpPass pass_;
  ChainDrafter chains_;
  CallTips tips_;  // of drafts
};

}  // namespace dendrite
