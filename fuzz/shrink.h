#pragma once

#include <chrono>
#include <functional>

#include "fuzz/program.h"

namespace dendrite::fuzz {

/// Makes a failing program smaller while it still fails: operations first (delta debugging, Zeller
/// and Hildebrandt 2002), then the setting, then the draws of what is left.
class Shrinker {
 public:
  using Fails = std::function<bool(const Program&)>;
  /// The program that was given to the last call of Fails, its draws listed.
  using Listed = std::function<Program(const Program&)>;

  Shrinker(Fails fails, Listed listed, double seconds);
  Program shrink(Program program);
  std::int64_t tried() const { return tried_; }

 private:
  bool over() const { return std::chrono::steady_clock::now() >= end_; }
  bool accept(Program& best, const Program& candidate);
  bool remove_ops(Program& best);
  void simplify_setting(Program& best);
  bool simplify_draws(Program& best);

  Fails fails_;
  Listed listed_;
  std::chrono::steady_clock::time_point end_;
  std::int64_t tried_ = 0;
};

}  // namespace dendrite::fuzz
