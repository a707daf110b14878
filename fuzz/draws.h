#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/rng.h"
#include "dendrite/types.h"

namespace dendrite::fuzz {

/// What was drawn, the first of it. Given again as a list, it decides the same in the same state.
struct Tape {
  static constexpr std::uint32_t kMost = 96;
  std::uint32_t count = 0;  // > kMost: not all are here
  std::array<std::uint32_t, kMost> values = {};
};

/// What one operation decides by: the n-th draw is a function of the operation's key and n, or the
/// n-th of a given list. Every draw is taken modulo what there is to choose from, and past the end
/// of a list it is 0, the simplest choice; so any operation can run in any state, and shortening a
/// list makes it simpler. Draws are written to a tape as they are made: a crash does not lose them.
class Draws {
 public:
  Draws(std::uint64_t key, Tape& tape) : key_(key), tape_(tape) { tape.count = 0; }
  Draws(std::span<const std::uint32_t> given, Tape& tape)
      : given_(given), listed_(true), tape_(tape) {
    tape.count = 0;
  }

  /// 0 to n - 1. Requires: n >= 1.
  std::int64_t below(std::int64_t n) {
    const std::int64_t value = next() % n;
    if (tape_.count < Tape::kMost) tape_.values[tape_.count] = static_cast<std::uint32_t>(value);
    ++tape_.count;
    return value;
  }
  std::int64_t in(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  /// True once in n times; a draw of 0 is false.
  bool one_in(std::int64_t n) { return below(n) == n - 1; }
  /// Ids below `alphabet`, all by one draw.
  std::vector<Token> tokens(std::int64_t count, std::int64_t alphabet) {
    const auto key = static_cast<std::uint64_t>(below(1 << 16));
    std::vector<Token> out;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint64_t bits = philox_u64(key, static_cast<std::uint64_t>(i), 1);
      out.push_back(static_cast<Token>(bits % static_cast<std::uint64_t>(alphabet)));
    }
    return out;
  }
  template <typename T>
  T& pick(std::vector<T>& from) {
    return from[static_cast<std::size_t>(below(std::ssize(from)))];
  }

 private:
  std::int64_t next() {
    const std::size_t place = tape_.count;
    if (listed_) return place < given_.size() ? given_[place] : 0;
    return static_cast<std::int64_t>(philox_u64(key_, place, 0) >> 33);
  }

  std::uint64_t key_ = 0;
  std::span<const std::uint32_t> given_;
  bool listed_ = false;
  Tape& tape_;
};

}  // namespace dendrite::fuzz
