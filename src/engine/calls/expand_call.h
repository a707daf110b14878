#pragma once

#include <span>
#include <vector>

#include "engine/calls/rows_call.h"

namespace dendrite {

/// The likeliest next tokens of branches.
class ExpandCall final : public RowsCall {
 public:
  /// Throws Error where the parameters name all tokens.
  ExpandCall(SessionCore& session, ConstBranches branches, const ExpandParams& params);

  /// Once it has ended: result[branch][token].
  std::vector<std::vector<TokenLogprob>> result() { return std::move(tokens_); }
  CallKind kind() const override { return CallKind::kNextTokens; }

 private:
  void read(std::span<const std::shared_ptr<const LogitsRow>> rows) DENDRITE_COMPUTES override;

  std::vector<TokenLogprob> read_one(std::size_t i, const LogitsRow& row);

  ExpandParams params_;
  std::vector<Matcher> matchers_;  // of each branch's constraint
  std::vector<bool> is_full_;      // it has as many tokens as the model has positions
  std::vector<std::vector<TokenLogprob>> tokens_;
};

/// Children of each branch, one for each of its tokens.
std::vector<std::vector<Branch>> children_of(SessionCore& session, ConstBranches branches,
                                             std::span<const std::vector<TokenLogprob>> tokens)
    DENDRITE_EXCLUDES(kTreeLock);

}  // namespace dendrite
