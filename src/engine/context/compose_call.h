#pragma once

#include <span>
#include <vector>

#include "engine/branches/composition.h"
#include "engine/branches/known_compositions.h"
#include "engine/calls/call.h"

namespace dendrite {

/// Computes what compositions lack: their tokens, and the sources of what is moved, all in the same
/// steps.
class ComposeCall final : public RequestsCall {
 public:
  struct Wanted {
    std::vector<PlainPiece> pieces;
    bool exact = false;
    BranchState* parent = nullptr;  // whose fork it is; null: nobody's
    Salt salt = 0;
    std::int64_t dropped = 0;   // for the report
    std::string note;           // and what it says if something is moved
    bool of_chunks = false;     // all that is moved comes from chunks
    bool exact_behind = false;  // ComposeParams::exact_behind
  };
  /// Throws Error for compositions that can never be computed. `what`: the caller's call.
  ComposeCall(SessionCore& session, std::vector<Wanted> wanted, const char* what,
              std::stop_token cancel);
  ~ComposeCall() override;

  /// Once it has ended, in the order given.
  std::vector<Composed> result();
  void drop_result() override { branches_.clear(); }
  CallKind kind() const override { return CallKind::kCompose; }

 private:
  /// It is there already, or how it is to be computed.
  struct Start {
    const KnownCompositions::Known* known = nullptr;
    CompositionPlan plan;
  };
  Start start_of(const Wanted& wanted, const char* what) const DENDRITE_REQUIRES(kTreeLock);
  void begin(const Wanted& wanted, Start start) DENDRITE_REQUIRES(kTreeLock);
  void remember(std::size_t i) DENDRITE_REQUIRES(kTreeLock);
  void finish(Finish ended) DENDRITE_COMPUTES override;

  std::vector<Wanted> wanted_;
  std::vector<Branch> branches_;
  std::vector<BranchState*> states_;
  std::vector<std::uint64_t> tokens_hashes_;  // of those that are nobody's forks
};

}  // namespace dendrite
