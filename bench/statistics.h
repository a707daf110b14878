#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dendrite::bench {

/// What is told of a set of measurements.
struct Summary {
  double median = 0;
  double p90 = 0;  // the worst 10 %: high for times, low for rates
  double p99 = 0;
  double min = 0;
  double ci_low = 0;  // 95 % confidence interval of the median, by order statistics
  double ci_high = 0;
  std::int64_t trials = 0;
};

enum class Better : std::uint8_t { kLow, kHigh };  // decides which end p99 looks at

/// Requires at least one sample.
Summary summarize(std::span<const double> samples, Better better = Better::kLow);

double mean(std::span<const double> samples);    // requires at least one
double median(std::span<const double> samples);  // requires at least one

/// Wilson's score interval at 95 % for `hits` of `trials`. Source: Wilson 1927, JASA 22:209.
struct Interval {
  double low = 0;
  double high = 0;
};
Interval wilson(std::int64_t hits, std::int64_t trials);

}  // namespace dendrite::bench
