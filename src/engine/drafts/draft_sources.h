#pragma once

#include <memory>
#include <utility>

#include "engine/drafts/block_provider.h"
#include "engine/drafts/draft_model.h"
#include "engine/drafts/mtp_provider.h"
#include "engine/drafts/suffix_paced_provider.h"

namespace dendrite {

/// What an engine was loaded with to draft from, and what its sessions have said.
class DraftSources final : public DraftProviders {
 public:
  /// `model`: the engine of a draft model; null: there is none. Whoever reads along is the
  /// engine's. Throws Error where the draft model does not have the engine's tokens.
  DraftSources(EngineCore& engine, StepHost& host, std::shared_ptr<EngineCore> model)
      DENDRITE_EXCLUDES(kTreeLock);

  bool has(Speculate method) const override;
  DraftProvider& of(SessionCore& session, Speculate method)
      DENDRITE_REQUIRES(kComputeLock) override;

  /// Who is asked by Speculate::kDraftModel; null: nobody.
  const DraftProvider* draft_model() const { return draft_model_.get(); }
  /// Another one from now on, for tests and benches; returns who was asked before.
  std::unique_ptr<DraftProvider> exchange_draft_model(std::unique_ptr<DraftProvider> with) {
    return std::exchange(draft_model_, std::move(with));
  }

 private:
  std::unique_ptr<DraftProvider> draft_model_;
  std::unique_ptr<BlockProvider> blocks_;  // null: no drafter
  std::unique_ptr<SuffixPacedProvider> suffix_blocks_;
  std::unique_ptr<MtpProvider> mtp_;  // null: the engine has no MTP head
  std::unique_ptr<SuffixPacedProvider> suffix_mtp_;
};

/// What an engine that was loaded drafts from.
inline DraftSources& sources_of(const EngineCore& engine) {
  return static_cast<DraftSources&>(*engine.drafts);
}

}  // namespace dendrite
