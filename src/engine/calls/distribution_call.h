#pragma once

#include <span>
#include <vector>

#include "dendrite/distribution.h"
#include "engine/calls/rows_call.h"

namespace dendrite {

/// The next-token distributions of branches themselves.
class DistributionCall final : public RowsCall {
 public:
  DistributionCall(SessionCore& session, ConstBranches branches, std::stop_token cancel);

  /// Once it has ended: result[branch].
  std::vector<Distribution> result() { return std::move(distributions_); }
  CallKind kind() const override { return CallKind::kDistributions; }

 private:
  void read(std::span<const std::shared_ptr<const LogitsRow>> rows) DENDRITE_COMPUTES override;

  std::vector<Distribution> distributions_;
};

}  // namespace dendrite
