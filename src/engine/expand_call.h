#pragma once

#include <span>
#include <vector>

#include "engine/call.h"

namespace dendrite {

/// The likeliest next tokens of branches.
class ExpandCall final : public RequestsCall {
 public:
  /// Throws Error where the parameters name all tokens.
  ExpandCall(SessionCore& session, std::span<const Branch> branches, const ExpandParams& params);

  /// Once it has ended: result[branch][token].
  std::vector<std::vector<TokenLogprob>> result() { return std::move(tokens_); }

 private:
  void conclude(Finish ended) DENDRITE_COMPUTES override;

  ExpandParams params_;
  std::vector<BranchState*> branches_;
  std::vector<std::vector<TokenLogprob>> tokens_;
};

}  // namespace dendrite
