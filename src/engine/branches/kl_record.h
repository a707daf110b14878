#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "dendrite/stats.h"

namespace dendrite {

/// What estimates said of the errors of compositions, and audits found. An estimate is the distance
/// between a composition and one with twice the repair, which is less than the error, and next to
/// nothing where neither repairs what matters; what it is times to be taken, audits of branches
/// that had an estimate tell.
class KlRecord {
 public:
  void add_estimate(double kl) { add(estimates_, kl); }
  /// `distance`: what the branch's estimate was made of; 0: it had none.
  void add_audit(double kl, double distance);

  /// Of the errors that audits found in relation to the distances, so large is the 90 % quantile of
  /// the last kRatios; kUsual before the first kFewest.
  double factor() const { return factor_; }
  const KlHistogram& estimates() const { return estimates_; }
  const KlHistogram& audits() const { return audits_; }

  /// Not below the error in nine of ten contexts of each class of the model of contexts but the one
  /// whose references no repair reaches (bench/history/2026-11-25.md).
  static constexpr double kUsual = 50;
  static constexpr std::size_t kFewest = 16;
  static constexpr std::size_t kRatios = 64;

 private:
  static void add(KlHistogram& histogram, double kl);

  KlHistogram estimates_;
  KlHistogram audits_;
  std::array<double, kRatios> ratios_{};  // the last ones, in a ring
  std::size_t seen_ = 0;
  double factor_ = kUsual;
};

}  // namespace dendrite
