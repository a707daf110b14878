#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "draft/acceptance.h"
#include "draft/draft_purse.h"
#include "engine/branches/draft_provider.h"
#include "engine/branches/engine_core.h"

namespace dendrite {

/// A provider whose drafts take time of their own, as a model's do: it is asked where that is
/// expected to pay, and now and then to see whether it does. What it throws is no draft, and ends
/// in a pause.
class PacedProvider : public DraftProvider {
 public:
  void propose(std::span<LaneDraft* const> wanted, double slack) DENDRITE_COMPUTES final;
  void learn(const LaneDraft& draft, std::int32_t came) DENDRITE_REQUIRES(kComputeLock) final;
  void conclude(const LaneDraft& draft) DENDRITE_REQUIRES(kComputeLock) final;
  void end_turn(double ms) DENDRITE_REQUIRES(kComputeLock) final;
  /// Tokens that a draft of full length is likely to give, by what others gave.
  double expected() const DENDRITE_REQUIRES(kComputeLock);

 protected:
  struct Pace {
    double ratio = 1;        // time of a pass by the engine's steps, as a first guess
    bool one_pass = false;   // for a whole draft; else for each of its tokens
    std::int64_t depth = 0;  // of a draft, at most
  };
  PacedProvider(EngineCore& engine, Acceptance& acceptance, const Pace& pace)
      : engine_(engine), acceptance_(acceptance), pace_(pace), purse_(pace.ratio, pace.one_pass) {}

  /// A lane that lacks more tokens than its last is about to be computed. A turn with one that
  /// lacks more than so many is none to learn from.
  static constexpr std::int64_t kLong = 8;
  /// Those that can be drafted for.
  virtual std::vector<LaneDraft*> choose(std::span<LaneDraft* const> wanted) DENDRITE_COMPUTES = 0;
  /// Those whose last token alone is to be computed, where the tree has pages for `places` more;
  /// none in a turn that is none to learn from. For drafts on the tree's own pages.
  std::vector<LaneDraft*> with_one_missing(std::span<LaneDraft* const> wanted,
                                           std::int64_t places) DENDRITE_COMPUTES;
  /// Rows that are to be computed before anything can be drafted.
  virtual std::int64_t prepare(std::span<LaneDraft* const> /*drafts*/) DENDRITE_COMPUTES {
    return 0;
  }
  /// Drafts of this depth; Draft::level is how deep they are.
  virtual void fill(std::span<LaneDraft* const> drafts, std::int64_t depth) DENDRITE_COMPUTES = 0;
  /// After each turn with drafts, and after one that failed.
  virtual void tidy(bool /*failed*/) DENDRITE_REQUIRES(kComputeLock) {}
  /// Drafts that are wanted whatever time they take.
  static bool is_free(const LaneDraft* draft);

  EngineCore& engine_;
  std::int64_t turns_ = 0;

 private:
  /// What a turn took and gave.
  struct Turn {
    std::int64_t lanes = 0;  // 0: nobody asked, or it is none to learn from
    std::int64_t drafted = 0;
    std::int64_t unread = 0;
    std::int64_t taken = 0;
    double draft_ms = 0;
  };
  std::int64_t depth_for(std::span<LaneDraft* const> drafts, double slack,
                         std::int64_t unread) DENDRITE_COMPUTES;

  Acceptance& acceptance_;
  const Pace pace_;
  DraftPurse purse_;
  Turn turn_;
  std::int64_t next_turn_ = 0;  // in which it may draft
};

}  // namespace dendrite
