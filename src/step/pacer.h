#pragma once

#include <cstdint>
#include <map>

namespace dendrite {

/// How many rows a step with a long request may take beside others, so that it ends in time: from
/// what the last steps of about so many rows took. What that depends on besides (the length of
/// contexts, who else runs) changes little from step to step. Requires the tree lock.
///
/// A step takes some time whatever its rows. So what is between two sizes that were seen is
/// interpolated, and of more rows than were seen this asks for too few, and the next step tells
/// more. What makes steps of one size slower makes those of all. Times scatter: so many rows are
/// taken that all but one step of a hundred are expected to end within 1.2 of the target.
class Pacer {
 public:
  /// A step of so many rows took so long. One that has not `ended` goes on beside those that
  /// follow: what they took until one of them has ended is all theirs.
  void record(std::int64_t rows, double ms, bool ended = true);
  /// There are such that have not ended.
  bool under_way() const { return under_way_.rows > 0; }
  std::int64_t rows(double target_ms) const;

 private:
  struct Size {             // steps of one octave of rows
    std::int64_t rows = 0;  // of the last one
    double ms = 0;          // what is expected of one with these
    std::int64_t step = 0;  // when it was
  };

  /// By what was seen; there is something.
  double expected_ms(std::int64_t rows) const;

  std::map<int, Size> sizes_;  // by the width of their counts in bits
  Size under_way_;
  double scatter_ = 0.05;   // how far from what was expected steps end, as a part of it
  std::int64_t steps_ = 0;  // that were recorded
};

}  // namespace dendrite
