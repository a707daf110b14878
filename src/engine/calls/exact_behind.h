#pragma once

#include <memory>
#include <vector>

#include "engine/calls/call.h"

namespace dendrite {

/// Begins the exact twin of a branch that was composed: a place of the same tokens, which turns
/// compute in rows and pages that nobody wants (ComposeParams::exact_behind).
void begin_exact(BranchState& branch) DENDRITE_REQUIRES(kTreeLock);

/// The exact twin that is computed in a turn, if one is: it stays while this lives.
class ExactBehind {
 public:
  /// Adds its wish to those of the turn, if it is to take part.
  ExactBehind(EngineCore& engine, std::vector<Wish>& wishes) DENDRITE_REQUIRES(kTreeLock);
  ~ExactBehind() DENDRITE_EXCLUDES(kTreeLock);
  ExactBehind(const ExactBehind&) = delete;
  ExactBehind& operator=(const ExactBehind&) = delete;

  /// Whether one takes part, and which.
  const BranchState* state() const { return state_; }
  /// After the step: it is left alone from then on, if no pages were to be had for it.
  void note_waited() { has_room_ = false; }

 private:
  EngineCore& engine_;
  std::shared_ptr<SessionCore> session_;
  BranchState* state_ = nullptr;
  bool has_room_ = true;
};

}  // namespace dendrite
