#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

#include "core/size_class.h"

namespace dendrite {

/// Something for each number of lanes, or size_class of them.
template <typename T>
class ByLanes {
 public:
  T* find(std::int64_t lanes) {
    const auto found = all_.find(size_class(lanes));
    return found == all_.end() ? nullptr : &found->second;
  }
  const T* find(std::int64_t lanes) const { return const_cast<ByLanes*>(this)->find(lanes); }
  /// A new one is as that of the nearest number of fewer lanes, or as `first`.
  T& at(std::int64_t lanes, const T& first) {
    const std::int64_t lanes_class = size_class(lanes);
    const auto next = all_.lower_bound(lanes_class);
    if (next != all_.end() && next->first == lanes_class) return next->second;
    const T from = next == all_.begin() ? first : std::prev(next)->second;
    return all_.emplace(lanes_class, from).first->second;
  }

 private:
  std::map<std::int64_t, T> all_;
};

/// What turns without drafts take, by how many lanes are in them: what drafts are measured by.
class PlainTurns {
 public:
  void record(std::int64_t lanes, double ms) {
    ++turns_;
    Plain* plain = plain_.find(lanes);
    if (plain == nullptr) {
      plain = &plain_.at(lanes, {});
      *plain = {.ms = ms};
    }
    plain->ms += (ms - plain->ms) / (ms < plain->ms ? 2 : 16);
    plain->turn = turns_;
  }
  /// Another turn was none to learn from.
  void pass() { ++turns_; }
  /// Near the lower end; nothing where it was not seen at all.
  std::optional<double> ms(std::int64_t lanes) const {
    const Plain* plain = plain_.find(lanes);
    return plain == nullptr ? std::nullopt : std::optional(plain->ms);
  }
  /// Seen within the last turns.
  bool is_fresh(std::int64_t lanes) const {
    const Plain* plain = plain_.find(lanes);
    return plain != nullptr && turns_ - plain->turn <= kFresh;
  }

 private:
  /// So many turns after it was seen, what a plain turn takes is seen again.
  static constexpr std::int64_t kFresh = 128;

  struct Plain {
    double ms = 0;
    std::int64_t turn = 0;  // when it was seen
  };

  ByLanes<Plain> plain_;
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
  static constexpr double kMost = 8;

  double ms_ = 0;
};

}  // namespace dendrite
