// How many rows of long requests a step takes beside others, by what steps took.
#include "step/pacer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>

namespace dendrite {
namespace {

using Cost = std::function<double(std::int64_t rows)>;

/// The rows of the last of so many steps, each of as many as were asked for.
std::int64_t paced(Pacer& pacer, const Cost& cost, double target_ms, int steps) {
  std::int64_t rows = 0;
  for (int i = 0; i < steps; ++i) {
    rows = pacer.rows(target_ms);
    pacer.record(rows, cost(rows));
  }
  return rows;
}

double on_gpu(std::int64_t rows) {
  return 6 + 0.02 * static_cast<double>(rows);
}

TEST(Pacer, WithoutATargetThereIsNoBound) {
  EXPECT_EQ(Pacer().rows(std::numeric_limits<double>::infinity()),
            std::numeric_limits<std::int64_t>::max());
}

TEST(Pacer, FindsHowManyRowsEndInTime) {
  Pacer pacer;
  const std::int64_t rows = paced(pacer, on_gpu, 25, 40);
  EXPECT_LE(on_gpu(rows), 1.2 * 25);
  EXPECT_GE(on_gpu(rows), 0.8 * 25);
}

TEST(Pacer, FollowsStepsThatGrowLonger) {
  Pacer pacer;
  double a_row = 0.1;
  const Cost cost = [&](std::int64_t rows) { return a_row * static_cast<double>(rows); };
  paced(pacer, cost, 100, 20);
  for (int i = 0; i < 200; ++i) {
    a_row *= 1.02;
    const std::int64_t rows = pacer.rows(100);
    EXPECT_TRUE(rows == 32 || cost(rows) <= 150) << rows << " rows of " << a_row << " ms";
    pacer.record(rows, cost(rows));
  }
}

/// Most of a small step is not its rows': it must not make the next one small, too.
TEST(Pacer, ASmallStepDoesNotHideWhatALargeOneTook) {
  Pacer pacer;
  for (int i = 0; i < 3; ++i) pacer.record(2048, on_gpu(2048));
  pacer.record(128, on_gpu(128));
  const std::int64_t rows = pacer.rows(25);
  EXPECT_GE(rows, 768);
  EXPECT_LE(on_gpu(rows), 1.2 * 25);
}

/// A device works on its own: the pieces of a prompt are handed over, and the last one is waited
/// for.
TEST(Pacer, WhatIsNotWaitedForIsNotTheNextStepsTime) {
  Pacer pacer;
  pacer.record(2048, 3, false);
  EXPECT_TRUE(pacer.under_way());
  pacer.record(2048, 45, false);
  pacer.record(128, 2 * on_gpu(2048) + on_gpu(128) - 48);
  EXPECT_FALSE(pacer.under_way());
  EXPECT_GE(pacer.rows(25), 768);
}

TEST(Pacer, ForgetsWhatIsLongAgo) {
  Pacer pacer;
  pacer.record(512, 20);  // of contexts that are gone
  for (int i = 0; i < 300; ++i) pacer.record(128, 20);
  EXPECT_LE(pacer.rows(25), 192);
}

TEST(Pacer, ScatteredTimesLeaveMoreRoom) {
  Pacer steady;
  Pacer scattered;
  for (int i = 0; i < 40; ++i) {
    steady.record(256, 20);
    scattered.record(256, i % 2 == 0 ? 14 : 26);
  }
  EXPECT_LT(scattered.rows(20), steady.rows(20));
}

}  // namespace
}  // namespace dendrite
