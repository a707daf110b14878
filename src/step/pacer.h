#pragma once

#include <cstdint>

namespace dendrite {

/// How many rows of a long prompt a step may take beside others, so that it ends in time: from what
/// the last steps took for each row. What that depends on (the length of contexts, who else runs)
/// changes little from step to step. Requires the tree lock.
class Pacer {
 public:
  /// A step of so many rows took so long.
  void record(std::int64_t rows, double ms);
  /// Of a step that is to take no longer than `target_ms` in all but one of a hundred.
  std::int64_t rows(double target_ms) const;

 private:
  double row_ms_ = 0;      // a row's part of a step; 0: not known
  std::int64_t rows_ = 0;  // of the last step
};

}  // namespace dendrite
