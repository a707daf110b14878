#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>

namespace dendrite {

/// What turns without drafts take, by how many lanes are in them: what drafts are measured by.
class PlainTurns {
 public:
  void record(std::int64_t lanes, double ms) {
    ++turns_;
    const auto [at, is_new] = plain_.try_emplace(bucket_of(lanes), Plain{ms, turns_});
    Plain& plain = at->second;
    plain.ms += (ms - plain.ms) / (ms < plain.ms ? 2 : 16);
    plain.turn = turns_;
  }
  /// Another turn was none to learn from.
  void pass() { ++turns_; }
  /// Near the lower end; nothing where it was not seen at all.
  std::optional<double> ms(std::int64_t lanes) const {
    const auto found = plain_.find(bucket_of(lanes));
    return found == plain_.end() ? std::nullopt : std::optional(found->second.ms);
  }
  /// Seen within the last turns.
  bool is_fresh(std::int64_t lanes) const {
    const auto found = plain_.find(bucket_of(lanes));
    return found != plain_.end() && turns_ - found->second.turn <= kFresh;
  }

 private:
  /// So many turns after it was seen, what a plain turn takes is seen again.
  static constexpr std::int64_t kFresh = 128;

  struct Plain {
    double ms = 0;
    std::int64_t turn = 0;  // when it was seen
  };
  /// Up to 16 lanes each count by itself, then 8 to an octave.
  static std::int64_t bucket_of(std::int64_t lanes) {
    const auto width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(lanes)));
    const int drop = std::max(0, width - 4);
    return lanes >> drop << drop;
  }

  std::map<std::int64_t, Plain> plain_;
  std::int64_t turns_ = 0;
};

/// What drafts have given and cost, in ms: they pay into it or out of it, and a small part of all
/// time goes into it. So whatever is expected of them, what they lose is no more than that part and
/// a few turns.
class Purse {
 public:
  /// A turn without drafts, which usually takes so long: what trying may cost comes together.
  void save(double ms, double plain_ms) { pay(kShare * std::min(ms, 2 * plain_ms), plain_ms); }
  void pay(double ms, double plain_ms) { ms_ = std::min(ms_ + ms, kMost * plain_ms); }
  double ms() const { return ms_; }
  /// Whether what is expected to pay may be tried; `lent`: what was paid for later turns.
  bool has_credit(double plain_ms, double lent_ms = 0) const {
    return ms_ + lent_ms + kCredit * plain_ms >= 0;
  }

 private:
  /// Of all time: what trying may cost.
  static constexpr double kShare = 0.01;
  /// Plain turns: what may be lost where drafts are expected to pay, and what is kept at most.
  static constexpr double kCredit = 2;
  static constexpr double kMost = 32;

  double ms_ = 0;
};

}  // namespace dendrite
