#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/calls/call.h"

namespace dendrite {

/// Computes a prompt.
class PrefillCall final : public RequestsCall {
 public:
  /// Of a salt that stands for options.salt. Throws Error for a prompt that can never be computed.
  PrefillCall(SessionCore& session, std::span<const Token> tokens, const PrefillOptions& options,
              Salt salt);
  ~PrefillCall() override;

  /// Once it has ended: the prompt's branch.
  Branch result() { return std::move(branch_); }
  void take(std::span<const StepOutcome> outcomes, ReadyLanes& ready)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock) override;
  void drop_result() override { const Branch dropped = result(); }
  CallKind kind() const override { return CallKind::kPrefill; }

 private:
  void finish(Finish ended) DENDRITE_COMPUTES override;
  /// Who comes with the same tokens finds them in the index from now on, or not at all.
  void leave_prompts() DENDRITE_REQUIRES(kTreeLock);

  std::vector<Token> tokens_;
  Branch branch_;
  BranchState* state_;
  std::int64_t computed_ = 0;  // of its tokens, by its own requests
  std::optional<PromptsUnderWay::iterator> place_;
};

}  // namespace dendrite
