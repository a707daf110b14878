#pragma once

#include <span>
#include <vector>

#include "engine/call.h"
#include "engine/composition.h"

namespace dendrite {

/// Computes what compositions lack: their tokens, and the sources of what is moved, all in the same
/// steps.
class ComposeCall final : public RequestsCall {
 public:
  struct Wanted {
    CompositionPlan plan;
    BranchState* parent = nullptr;  // whose fork it is; null: nobody's
  };
  /// Throws Error for compositions that can never be computed. `what`: the caller's call.
  ComposeCall(SessionCore& session, std::vector<Wanted> wanted, const char* what,
              std::stop_token cancel);
  ~ComposeCall() override;

  /// Once it has ended, in the order given.
  std::vector<Composed> result();
  void drop_result() override { branches_.clear(); }

 private:
  void conclude(Finish ended) DENDRITE_COMPUTES override;

  std::vector<Branch> branches_;
  std::vector<BranchState*> states_;
};

}  // namespace dendrite
