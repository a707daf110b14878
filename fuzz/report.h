#pragma once

#include <string>

#include "fuzz/options.h"
#include "fuzz/worker.h"

namespace dendrite::fuzz {

/// A failure and the smallest program found that has it.
struct Finding {
  Result result;
  Program program;
  std::string file{};  // it came from there
};

/// What was done, without what it took to make a failure smaller.
struct Totals {
  std::int64_t ops = 0;
  Counts counts{};
  double seconds = 0;
};

/// One row a count, for people.
std::string text_report(const Options& options, const Totals& totals);
/// One JSON object on one line; `finding` may be null.
std::string json_report(const Options& options, const Totals& totals, const Finding* finding);

/// Names of counts that a long run with nothing fixed must not leave at zero, and did; or empty.
std::string missing_counts(const Counts& counts);

}  // namespace dendrite::fuzz
