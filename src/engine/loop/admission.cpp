#include "engine/loop/admission.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <tuple>
#include <utility>

#include "engine/branches/tell.h"
#include "engine/calls/lane.h"

namespace dendrite {
namespace {

/// A caller who has its prompt is expected for so long.
constexpr auto kExpected = std::chrono::milliseconds(500);
/// What follows a prompt, before any branch has ended.
constexpr std::int64_t kGuess = 64;
/// At least so many tokens are expected of one that went beyond what others needed.
constexpr std::int64_t kLeastRest = 16;
/// Rounds that a count of the pages on hold is good for.
constexpr int kGoodFor = 32;

std::int64_t pages_of(const KvTree& tree, std::int64_t tokens) {
  return (tokens + tree.page_tokens() - 1) / tree.page_tokens();
}

bool is_prompt(const Wish& wish) {
  return wish.lane == nullptr;
}

}  // namespace

/// As round-trip times are estimated for retransmissions (Jacobson 1988, Congestion Avoidance and
/// Control): means with gains of 1/8 and 1/4.
void LengthEstimate::record(std::int64_t tokens) {
  const auto length = static_cast<double>(tokens);
  if (!std::exchange(known_, true)) {
    mean_ = length;
    deviation_ = length / 2;
    return;
  }
  deviation_ += (std::abs(length - mean_) - deviation_) / 4;
  mean_ += (length - mean_) / 8;
}

std::int64_t LengthEstimate::rest(std::int64_t so_far, std::int64_t most) const {
  if (!known_) return most;
  const auto expected = static_cast<std::int64_t>(std::ceil(mean_ + 2 * deviation_));
  return std::min(most, std::max(expected - so_far, kLeastRest));
}

void Admission::choose(std::span<Wish> wishes) {
  forget_kept();
  if (!find_guests(wishes)) divide(wishes);
  for (Guest& guest : guests_) {
    guest.wish->branch->outside = guest.wish->outside;
    if (guest.wish->outside) {
      send_out(guest);
    } else {
      let_in(guest);
    }
  }
}

/// True: all find their pages among those that are free, whatever is shared.
bool Admission::find_guests(std::span<Wish> wishes) {
  const KvTree& tree = *engine_.tree;
  guests_.clear();
  std::int64_t wanted = kept_pages_;
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    Wish& wish = wishes[i];
    if (wish.to_come >= 0) wish.branch->outside = false;
    // (One that only draws takes no page in this step.)
    if (wish.request.optional || is_served(tree, wish.request)) continue;
    const Tip& tip = *wish.request.tip;
    const std::int64_t length = tree.length(tip);
    const std::int64_t computed = tree.computed(tip);
    const std::int64_t now = pages_of(tree, length) - pages_of(tree, computed);
    const std::int64_t copy = computed % tree.page_tokens() == 0 ? 0 : 1;
    wanted += now + copy;
    if (wish.to_come < 0) continue;
    const std::int64_t later = pages_of(tree, length + rest_of(wish)) - pages_of(tree, length);
    guests_.push_back({.wish = &wish, .place = i, .now = now, .copy = copy, .later = later});
    wanted += later;
  }
  return guests_.empty() || wanted <= tree.pool().free_pages();
}

std::int64_t Admission::rest_of(const Wish& wish) const {
  if (is_prompt(wish)) return lengths_.rest(0, kGuess);
  return lengths_.rest(std::ssize(wish.lane->out.ids), wish.to_come);
}

/// Pages of branches on hold beside those of the wishes. Looked for now and then: it takes a walk
/// over all branches.
std::int64_t Admission::on_hold(std::span<const Wish> wishes) {
  if (rounds_++ % kGoodFor != 0) return on_hold_;
  KvTree& tree = *engine_.tree;
  tree.begin_eviction();
  for (const Wish& wish : wishes) tree.claim(*wish.request.tip);
  on_hold_ = 0;
  const EngineTime now = engine_.now();
  for (const SessionCore* session : engine_.sessions) {
    for (const BranchState& branch : session->slab) {
      if (branch.tip.empty() || branch.held_until <= now || branch.outside) continue;
      on_hold_ += tree.unclaimed_pages(branch.tip);
      tree.claim(branch.tip);
    }
  }
  return on_hold_;
}

void Admission::divide(std::span<const Wish> wishes) {
  KvTree& tree = *engine_.tree;
  const EngineTime time = engine_.now();
  std::ranges::sort(guests_, {}, [&](const Guest& guest) DENDRITE_REQUIRES(kTreeLock) {
    const BranchState& branch = *guest.wish->branch;
    // (What a branch on hold has, nobody gets once it has ended.)
    return std::tuple(-std::int64_t{guest.wish->turn.priority}, branch.held_until > time,
                      branch.admitted == 0, branch.admitted, is_prompt(*guest.wish), guest.place);
  });
  const std::int64_t total = tree.pool().size() - on_hold(wishes);
  std::int64_t taken = 0;  // pages, with what this step takes
  tree.begin_eviction();
  for (const Wish& wish : wishes) {
    const bool grows = wish.to_come >= 0 && !is_served(tree, wish.request);
    if (grows || wish.request.optional) continue;
    const Tip& tip = *wish.request.tip;
    taken += tree.unclaimed_pages(tip) + pages_of(tree, tree.length(tip)) -
             pages_of(tree, tree.computed(tip));
    tree.claim(tip);
  }
  std::int64_t promised = taken;  // and with all that is still to come
  bool any_in = false;
  bool is_full = false;  // for who is not in
  for (Guest& guest : guests_) {
    const bool was_in = guest.wish->branch->admitted != 0;
    guest.wish->outside = any_in && !was_in && is_full;
    if (guest.wish->outside) continue;
    const Tip& tip = *guest.wish->request.tip;
    // (Who is in has a last page of its own.)
    const std::int64_t now = tree.unclaimed_pages(tip) + guest.now + (was_in ? 0 : guest.copy);
    const std::int64_t kept = is_prompt(*guest.wish) ? kept_pages_ : 0;
    const bool fits = was_in ? taken + now <= total
                             : std::max(taken, promised) + now + guest.later + kept <= total;
    if (any_in && !fits) {
      guest.wish->outside = true;
      is_full = true;
      continue;
    }
    any_in = true;
    tree.claim(tip);
    taken += now;
    promised += now + guest.later;
  }
}

void Admission::send_out(Guest& guest) {
  BranchState& branch = *guest.wish->branch;
  guest.wish->pages_lacking = guest.now;
  if (std::exchange(branch.admitted, 0) == 0) return;
  ++branch.session->stats.preemptions;
  tell_preempt(branch);
}

/// One that begins behind a prompt is whom room was kept for.
void Admission::let_in(Guest& guest) {
  BranchState& branch = *guest.wish->branch;
  if (branch.admitted != 0) return;
  branch.admitted = ++admitted_;
  if (is_prompt(*guest.wish) || branch.tokens_generated > 1 || kept_.empty()) return;
  kept_pages_ -= kept_.front().pages;
  kept_.pop_front();
  comes_back_ += (1 - comes_back_) / 8;
}

void Admission::forget_kept() {
  const EngineTime now = std::chrono::steady_clock::now();
  while (!kept_.empty() && kept_.front().until < now) {
    kept_pages_ -= kept_.front().pages;
    kept_.pop_front();
    comes_back_ -= comes_back_ / 8;
  }
}

void Admission::keep_room(std::span<const Wish> wishes) {
  const KvTree& tree = *engine_.tree;
  for (const Wish& wish : wishes) {
    if (wish.to_come < 0 || wish.outside || !is_prompt(wish)) continue;
    if (!is_served(tree, wish.request)) continue;
    const double pages = static_cast<double>(pages_of(tree, wish.branch->tokens_computed) +
                                             pages_of(tree, rest_of(wish)));
    kept_.push_back({.until = std::chrono::steady_clock::now() + kExpected,
                     .pages = static_cast<std::int64_t>(pages * comes_back_)});
    kept_pages_ += kept_.back().pages;
  }
}

void Admission::learn_lengths(std::span<const Wish> wishes) {
  for (const Wish& wish : wishes) {
    if (wish.to_come < 0 || wish.outside || is_prompt(wish)) continue;
    const Finish finish = wish.lane->out.finish;
    const bool ended = finish == Finish::kLength || finish == Finish::kStop ||
                       finish == Finish::kEos || finish == Finish::kStopInside;
    if (ended) lengths_.record(std::ssize(wish.lane->out.ids));
  }
}

}  // namespace dendrite
