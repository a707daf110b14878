#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace dendrite {

/// How long steps take by their number of rows, as far as it was seen. It decides when optional
/// rows run and nothing else. Requires the tree lock.
///
/// Times scatter, and one slow step in a hundred is what a caller notices. So a count of rows is
/// held to the upper end of what it took, against the lower end of what the required rows take
/// alone. Counts that are not known to be fast enough are tried one after the other, and only so
/// many of those may turn out too slow.
class StepTimes {
 public:
  virtual ~StepTimes() = default;

  /// A step of so many rows (> 0) took so long. Tests put their own time in.
  virtual void record(std::int64_t rows, double ms);
  /// The most rows, up to `most`, that a step may have to take at most `slack` times as long as
  /// with `rows`. Just `rows` where it was not seen lately how long those take. What is recorded
  /// next is the step that it was asked for.
  std::int64_t widest(std::int64_t rows, double slack, std::int64_t most);
  /// What so many rows usually take, in ms, as far as that can be told from what was seen lately.
  std::optional<double> usual(std::int64_t rows) const;

 private:
  /// Of them too slow in a row, and steps in which one more may be. (One in a hundred may be, and
  /// some that were known are.)
  static constexpr double kTries = 3;
  static constexpr double kStepsPerTry = 512;

  struct Point {
    std::int64_t rows = 0;
    double low = 0;  // ms, near the lower end of what is seen
    double high = 0;
    std::int64_t step = 0;  // when it was seen last
  };
  struct Estimate {
    double low = 0;  // infinity: not to be tried
    double high = 0;
    bool seen = false;  // lately
  };
  /// The step that widest() was asked for last, if it may have optional rows.
  struct Asked {
    std::int64_t rows = 0;  // without them
    double allowed = 0;     // ms
  };
  double linear(std::int64_t rows) const;
  void judge(std::int64_t rows, double ms, const Point& point);
  /// Of a step of so many rows. Where it was not seen, the least that it can be: no less than with
  /// fewer rows, and no less for each row than with more. (Rows are nearly free up to some count,
  /// which a line between two points that are far apart would never find.)
  Estimate expected(std::int64_t rows) const;

  std::map<std::int64_t, Point> points_;  // by size_class of rows
  std::int64_t steps_ = 0;
  std::optional<Asked> asked_;
  double tries_ = kTries;  // that may still turn out too slow
};

}  // namespace dendrite
