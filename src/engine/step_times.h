#pragma once

#include <cstdint>
#include <map>

namespace dendrite {

/// How long steps take by their number of rows, as far as it was seen. It decides when optional
/// rows run and nothing else. Requires the tree lock.
class StepTimes {
 public:
  virtual ~StepTimes() = default;

  /// A step of so many rows (> 0) took so long. Tests put their own time in.
  virtual void record(std::int64_t rows, double ms);
  /// The most rows, up to `most`, that a step may have to take at most `slack` times as long as
  /// with `rows`. Just `rows` where it was not seen lately how long those take.
  std::int64_t widest(std::int64_t rows, double slack, std::int64_t most) const;

 private:
  struct Point {
    std::int64_t rows = 0;
    double ms = 0;
    std::int64_t step = 0;  // when it was seen last
  };
  struct Estimate {
    double ms = 0;      // infinity: not to be tried
    bool seen = false;  // lately
  };
  /// Of a step of so many rows. Where it was not seen, the least that it can be: no less than with
  /// fewer rows, and no less for each row than with more. (Rows are nearly free up to some count,
  /// which a line between two points that are far apart would never find.)
  Estimate expected(std::int64_t rows) const;

  std::map<std::int64_t, Point> points_;  // by bucket of rows
  std::int64_t steps_ = 0;
};

}  // namespace dendrite
