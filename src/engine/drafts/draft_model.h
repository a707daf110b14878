#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "draft/chain_drafter.h"
#include "engine/branches/engine_core.h"
#include "engine/branches/session_core.h"
#include "engine/drafts/paced_provider.h"

namespace dendrite {

class DecodeCall;

/// Speculate::kDraftModel: another model with the same tokens, in an engine of its own that nobody
/// else uses. Each branch that is drafted for has a follower there, a branch with its tokens and
/// its random stream, so the model draws by the numbers that the branch will draw by. Followers are
/// many, and their pages few: who was not used for long is computed again, or goes.
///
/// It waits for that engine with the compute lock of its own held; the other way round nothing is
/// ever waited for.
class DraftModel final : public PacedProvider {
 public:
  /// Throws Error where the two do not have the same tokens.
  DraftModel(EngineCore& engine, std::shared_ptr<EngineCore> model);
  ~DraftModel() override;

  /// For tests.
  const Engine& model() const { return handle_; }

 protected:
  std::vector<LaneDraft*> choose(std::span<LaneDraft* const> wanted) DENDRITE_COMPUTES override;
  std::int64_t prepare(std::span<LaneDraft* const> drafts) DENDRITE_COMPUTES override {
    return follow_all(drafts);
  }
  void fill(std::span<LaneDraft* const> drafts, std::int64_t length) DENDRITE_COMPUTES override;
  void tidy(bool failed) DENDRITE_REQUIRES(kComputeLock) override;

 private:
  struct Follower {
    Branch branch;
    std::int64_t agreed = 0;  // its first tokens, which are the branch's; then those drafted
    std::int64_t turn = 0;    // that used it last
  };
  /// Those of one session, in one with the same seed.
  struct Followers {
    std::shared_ptr<SessionCore> session;
    std::map<BranchId, Follower> of;
  };
  std::int64_t follow_all(std::span<LaneDraft* const> drafts) DENDRITE_COMPUTES;
  void follow(const BranchState& branch) DENDRITE_COMPUTES;
  void begin(Follower& follower, SessionCore& session, std::span<const Token> tokens,
             std::uint64_t stream, Salt salt) DENDRITE_COMPUTES;
  Follower& follower_of(const LaneDraft& draft);
  void forget(std::size_t most);

  const std::shared_ptr<EngineCore> model_;
  const Engine handle_ = handle_of(model_);
  std::map<std::uint64_t, Followers> followers_;  // by the session's number
  ChainDrafter chains_;
  /// The follower that was begun last in this turn.
  struct Newest {
    BranchState* follower = nullptr;
    std::vector<Token> tokens{};
    Salt salt = 0;
  };
  Newest newest_;
};

}  // namespace dendrite
