#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/calls/call.h"

namespace dendrite {

/// Has the next-token distributions of branches computed, for who reads them.
class RowsCall : public RequestsCall {
 protected:
  using RequestsCall::RequestsCall;

  /// Before the first turn. `what`: who asks. Throws Error, and adds none, where a branch is empty,
  /// of another session or in another call.
  void add(ConstBranches branches, const char* what) DENDRITE_EXCLUDES(kTreeLock);
  /// rows[i]: the distribution of the i-th branch, null where budget, pages or the caller forbade
  /// to compute it.
  virtual void read(std::span<const std::shared_ptr<const LogitsRow>> rows) DENDRITE_COMPUTES = 0;

  /// In read(): why nothing can follow the i-th branch.
  void mark(std::size_t i, Finish finish) { branches_[i]->finish = finish; }

 private:
  void finish(Finish ended) DENDRITE_COMPUTES final;

  std::vector<BranchState*> branches_;
};

}  // namespace dendrite
