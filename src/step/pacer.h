#pragma once

#include <cstdint>

namespace dendrite {

/// How many rows a step with a long request may take beside others, so that it ends in time: from
/// what the last steps took for each row. What that depends on (the length of contexts, who else
/// runs) changes little from step to step. Requires the tree lock.
///
/// A step takes some time whatever its rows, so for more rows than were seen this asks for too few,
/// and the next step tells more. Times scatter: so many rows are taken that all but one step of a
/// hundred are expected to end within 1.2 of the target.
class Pacer {
 public:
  /// A step of so many rows took so long.
  void record(std::int64_t rows, double ms);
  std::int64_t rows(double target_ms) const;

 private:
  double row_ms_ = 0;      // a row's part of a step; 0: not known
  double scatter_ = 0.05;  // how far from what was expected steps end, as a part of it
  std::int64_t rows_ = 0;  // of the last step
};

}  // namespace dendrite
