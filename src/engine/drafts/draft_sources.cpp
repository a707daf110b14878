#include "engine/drafts/draft_sources.h"

#include <utility>

#include "engine/drafts/suffix_provider.h"

namespace dendrite {

DraftSources::DraftSources(EngineCore& engine, StepHost& host, std::shared_ptr<EngineCore> model) {
  if (engine.drafter != nullptr) {
    const TreeLock lock(engine.tree_mutex);
    blocks_ = std::make_unique<BlockProvider>(engine, host);
    suffix_blocks_ = std::make_unique<SuffixPacedProvider>(*blocks_);
  }
  if (engine.mtp != nullptr) {
    const TreeLock lock(engine.tree_mutex);
    mtp_ = std::make_unique<MtpProvider>(engine, host);
    suffix_mtp_ = std::make_unique<SuffixPacedProvider>(*mtp_);
  }
  if (model != nullptr) draft_model_ = std::make_unique<DraftModel>(engine, std::move(model));
}

bool DraftSources::has(Speculate method) const {
  switch (method) {
    case Speculate::kDraftModel:
      return draft_model_ != nullptr;
    case Speculate::kDFlash:
    case Speculate::kDFlashTree:
    case Speculate::kSuffixDFlash:
      return blocks_ != nullptr;
    case Speculate::kMtp:
    case Speculate::kSuffixMtp:
      return mtp_ != nullptr;
    default:
      return true;
  }
}

DraftProvider& DraftSources::of(SessionCore& session, Speculate method) {
  switch (method) {
    case Speculate::kDraftModel:
      return *draft_model_;
    case Speculate::kDFlash:
    case Speculate::kDFlashTree:
      return *blocks_;
    case Speculate::kSuffixDFlash:
      return *suffix_blocks_;
    case Speculate::kMtp:
      return *mtp_;
    case Speculate::kSuffixMtp:
      return *suffix_mtp_;
    default:
      return suffixes_of(session);
  }
}

}  // namespace dendrite
