// Rows of a step among sessions, and of a long request beside others.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "step/pacer.h"
#include "step/shares.h"
#include "support/engine_support.h"

namespace dendrite {
namespace {

std::vector<std::int64_t> split(std::vector<Share> shares, std::int64_t rows) {
  share_rows(shares, rows);
  std::vector<std::int64_t> out;
  for (const Share& share : shares) out.push_back(share.rows);
  return out;
}

TEST(Shares, ByWeightAndWhatOneDoesNotWantGoesToTheOthers) {
  using Rows = std::vector<std::int64_t>;
  EXPECT_EQ(split({{1, 100}, {1, 100}}, 64), (Rows{32, 32}));
  EXPECT_EQ(split({{1, 100}, {3, 100}}, 64), (Rows{16, 48}));
  EXPECT_EQ(split({{1, 8}, {1, 10000}}, 512), (Rows{8, 504}));
  EXPECT_EQ(split({{1, 8}, {1, 4}}, 512), (Rows{8, 4}));
  EXPECT_EQ(split({{1, 0}, {1, 7}, {2, 100}}, 31), (Rows{0, 7, 24}));
  EXPECT_EQ(split({}, 5), Rows{});
}

/// Over any number of steps each gets its part but for less than a row, also where there are fewer
/// rows than sessions: a row at least every ceil(W / (w * rows)) steps.
TEST(Shares, NobodyStarves) {
  test::Random random(5);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<Share> shares(static_cast<std::size_t>(random.in(2, 40)));
    double weights = 0;
    for (Share& share : shares) {
      share.weight = static_cast<double>(random.in(1, 5));
      weights += share.weight;
    }
    const std::int64_t rows = random.in(1, 12);
    std::vector<std::int64_t> got(shares.size(), 0);
    std::vector<std::int64_t> last(shares.size(), 0);
    for (std::int64_t step = 1; step <= 300; ++step) {
      std::int64_t sum = 0;
      for (Share& share : shares) share.wanted = 1000;
      share_rows(shares, rows);
      for (std::size_t i = 0; i < shares.size(); ++i) {
        const double part = static_cast<double>(rows) * shares[i].weight / weights;
        sum += shares[i].rows;
        got[i] += shares[i].rows;
        if (shares[i].rows > 0) last[i] = step;
        EXPECT_LE(std::abs(static_cast<double>(got[i]) - part * static_cast<double>(step)),
                  1 + 1e-6);
        EXPECT_LE(step - last[i], 2 * static_cast<std::int64_t>(std::ceil(1 / part)));
      }
      EXPECT_EQ(sum, rows);
    }
  }
}

TEST(Shares, ComingAndGoingKeepsThemWithinARow) {
  test::Random random(6);
  std::vector<Share> shares(9);
  for (int step = 0; step < 2000; ++step) {
    std::int64_t wanted = 0;
    for (Share& share : shares) {
      share.wanted = random.one_in(3) ? 0 : random.in(1, 20);
      wanted += share.wanted;
    }
    const std::int64_t rows = random.in(1, 60);
    share_rows(shares, rows);
    std::int64_t sum = 0;
    for (const Share& share : shares) {
      EXPECT_GE(share.rows, 0);
      EXPECT_LE(share.rows, share.wanted);
      EXPECT_LE(std::abs(share.credit), 1);
      sum += share.rows;
    }
    EXPECT_EQ(sum, std::min(rows, wanted));
  }
}

/// A machine where a step takes 4 ms and 0.05 ms a row.
double step_ms(std::int64_t rows) {
  return 4 + 0.05 * static_cast<double>(rows);
}

TEST(Pacer, FindsHowManyRowsFitIntoTheTime) {
  Pacer pacer;
  EXPECT_EQ(pacer.rows(INFINITY), std::numeric_limits<std::int64_t>::max());
  std::int64_t rows = pacer.rows(25);
  EXPECT_EQ(rows, 64);  // nothing is known
  for (int step = 0; step < 30; ++step) {
    pacer.record(rows, step_ms(rows));
    rows = pacer.rows(25);
    EXPECT_LE(step_ms(rows), 1.2 * 25);
  }
  EXPECT_GT(step_ms(rows), 0.9 * 25);
  // Rows become twice as slow: too long once, then in time again.
  for (int step = 0; step < 30; ++step) {
    pacer.record(rows, 2 * step_ms(rows));
    rows = pacer.rows(25);
  }
  EXPECT_LE(2 * step_ms(rows), 1.2 * 25);
  EXPECT_GT(2 * step_ms(rows), 0.8 * 25);
}

TEST(Pacer, KeepsItsDistanceWhereTimesScatter) {
  test::Random random(3);
  Pacer pacer;
  int late = 0;
  double sum = 0;
  for (int step = 0; step < 5000; ++step) {
    const std::int64_t rows = pacer.rows(100);
    const double ms = step_ms(rows) * (0.9 + 0.002 * static_cast<double>(random.below(101)));
    if (step >= 20) late += ms > 120 ? 1 : 0;
    sum += ms;
    pacer.record(rows, ms);
  }
  EXPECT_LE(late, 50);
  EXPECT_GT(sum / 5000, 75);
}

}  // namespace
}  // namespace dendrite
