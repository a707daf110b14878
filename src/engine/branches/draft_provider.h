#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "dendrite/types.h"
#include "draft/lattice.h"
#include "grammar/matcher.h"
#include "step/locks.h"

namespace dendrite {

class DraftProvider;
struct BranchState;
struct Lane;
struct SessionCore;

/// What is drafted for a lane in one step.
struct LaneDraft {
  Lane* lane = nullptr;
  const DecodeParams* params = nullptr;  // of its call
  DraftLimits limits;                    // which its draft keeps to
  Draft draft;                           // what its provider proposed
  DraftProvider* by = nullptr;           // for one that asks others: who did
  std::vector<bool> picked;              // of its nodes: those that the step is asked for
  std::vector<Matcher> states;           // under a constraint: after each node
  /// Another lane of the call stands after the same text, and its draft is for both: this one's
  /// nodes are the same. Null: it is its own.
  LaneDraft* shared_with = nullptr;
  std::int32_t at = -1;     // the node of the lane's last token; -1: it has taken none
  bool is_walked = false;   // the lane goes on without it, ...
  bool is_refused = false;  // ... since the step had no row for what came: the child
                            // of that node that was proposed
  /// The provider would propose something, but the device has begun the step already: the next one
  /// must not be begun early.
  bool is_wanted = false;
  bool is_impossible = false;  // the provider cannot propose for this lane, or has failed

  std::int64_t taken() const {
    return at < 0 ? 0 : draft.nodes[static_cast<std::size_t>(at)].depth;
  }
  /// Proposed tokens that came, whether or not the last one had a row.
  std::int64_t came() const { return taken() + (is_refused ? 1 : 0); }
};

/// Whoever proposes tokens for speculation (DecodeParams::speculate). Used by the thread that
/// drives, with the engine's compute lock; what it proposes decides about time, and about no token.
class DraftProvider {
 public:
  virtual ~DraftProvider() = default;

  /// Whether it is not to be asked this time, which saves all that goes with it. For each call and
  /// turn.
  virtual bool rests() DENDRITE_REQUIRES(kComputeLock) { return false; }
  /// What may come after the lanes' texts, of all calls that ask in this turn. Others are in the
  /// same turn, and may take so many times longer by it: `slack`.
  virtual void propose(std::span<LaneDraft* const> drafts, double slack) DENDRITE_COMPUTES = 0;
  /// A draft was put to the test where it is `at`: what came is the node `came`, or none (-1).
  virtual void learn(const LaneDraft& draft, std::int32_t came) DENDRITE_REQUIRES(kComputeLock) = 0;
  /// The step is over.
  virtual void conclude(const LaneDraft& /*draft*/) DENDRITE_REQUIRES(kComputeLock) {}
  /// And so is the turn in which it was to propose, which took so long.
  virtual void end_turn(double /*ms*/) DENDRITE_REQUIRES(kComputeLock) {}
  /// The branch's text ends here.
  virtual void remember(BranchState& /*branch*/) DENDRITE_COMPUTES {}
};

/// Who proposes for an engine's calls, by method.
class DraftProviders {
 public:
  virtual ~DraftProviders() = default;
  /// Whether the engine was loaded with what the method needs.
  virtual bool has(Speculate method) const = 0;
  /// Requires has(method), and not kOff.
  virtual DraftProvider& of(SessionCore& session, Speculate method)
      DENDRITE_REQUIRES(kComputeLock) = 0;
};

/// A draft, and who is to fill it.
struct DraftWish {
  DraftProvider* provider = nullptr;
  LaneDraft* draft = nullptr;
};

}  // namespace dendrite
