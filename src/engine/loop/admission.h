#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "engine/calls/call.h"

namespace dendrite {

/// How many tokens branches generate before they end, as far as those that ended tell.
class LengthEstimate {
 public:
  void record(std::int64_t tokens);
  /// Tokens that one which has `so_far` will probably still generate, of `most` at most. Before
  /// anything is known: `most`.
  std::int64_t rest(std::int64_t so_far, std::int64_t most) const;
  bool knows() const { return known_; }

 private:
  bool known_ = false;
  double mean_ = 0;
  double deviation_ = 0;  // mean absolute
};

/// Who takes part in steps where the pages do not suffice for all who want to grow. Branches that
/// take a page now and then until none is left would all wait for each other, with their pages in
/// hand, and a few would go on. So a branch comes in when it will probably find all pages up to its
/// end beside those of who is in, and waits outside until then: its call asks, and its pages are
/// anybody's who needs them (Room). In the order of priority, then of those who are not on hold,
/// who are in before those who are not, who goes on before who begins, and of arrival. Of those who
/// are in, the last to come goes out again where the next page of one is not to be had. Somebody is
/// always in.
///
/// A prompt that was computed has room kept for what will follow it, which no other prompt gets,
/// since its caller comes back with a call in a moment; less of it the fewer callers did.
///
/// This decides how long things take, and nothing else. Scores, chunks and compositions take the
/// pages that they need and are not held back. Cost: a few words a wish where free pages are
/// plenty; else a walk over the last segments of those who are in.
class Admission {
 public:
  explicit Admission(EngineCore& engine) : engine_(engine) {}

  /// Sets Wish::outside.
  void choose(std::span<Wish> wishes) DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  /// After the step: room for what follows prompts that are computed now.
  void keep_room(std::span<const Wish> wishes) DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  /// Once it is known who has ended.
  void learn_lengths(std::span<const Wish> wishes) DENDRITE_REQUIRES(kComputeLock, kTreeLock);

 private:
  /// One that grows.
  struct Guest {
    Wish* wish = nullptr;
    std::size_t place = 0;   // among the wishes
    std::int64_t now = 0;    // pages that its pending tokens take, at most, ...
    std::int64_t copy = 0;   // a copy of its last page, if others have that, too, ...
    std::int64_t later = 0;  // and those that will probably follow
  };
  /// Room for what follows a prompt.
  struct Kept {
    EngineTime until;
    std::int64_t pages = 0;
  };

  bool find_guests(std::span<Wish> wishes) DENDRITE_REQUIRES(kTreeLock);
  std::int64_t rest_of(const Wish& wish) const DENDRITE_REQUIRES(kTreeLock);
  std::int64_t on_hold(std::span<const Wish> wishes) DENDRITE_REQUIRES(kTreeLock);
  void divide(std::span<const Wish> wishes) DENDRITE_REQUIRES(kTreeLock);
  void send_out(Guest& guest) DENDRITE_REQUIRES(kTreeLock);
  void let_in(Guest& guest) DENDRITE_REQUIRES(kTreeLock);
  void forget_kept();

  EngineCore& engine_;
  LengthEstimate lengths_;
  std::vector<Guest> guests_;
  std::deque<Kept> kept_;  // the first to end first
  std::int64_t kept_pages_ = 0;
  double comes_back_ = 1;       // the part of prompts that a call came for
  std::uint64_t admitted_ = 0;  // numbers that were given
  std::int64_t on_hold_ = 0;    // pages of branches on hold that no guest has
  int rounds_ = 0;              // since that was counted
};

}  // namespace dendrite
