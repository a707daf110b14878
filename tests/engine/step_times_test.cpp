// What the engine learns about the time of its steps, and how many rows it lets in by it.
#include "step/step_times.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>

namespace dendrite {
namespace {

using Cost = std::function<double(std::int64_t rows)>;

/// So many steps of a machine of this cost, in which `rows` are wanted and 100 more may run. The
/// rows of the last step.
std::int64_t run(StepTimes& times, const Cost& cost, std::int64_t rows, double slack, int steps,
                 int* over = nullptr) {
  std::int64_t last = 0;
  for (int i = 0; i < steps; ++i) {
    last = times.widest(rows, slack, rows + 100);
    times.record(last, cost(last));
    if (over != nullptr && cost(last) > slack * cost(rows) + 1e-9) ++*over;
  }
  return last;
}

/// Eight rows are free, as on a CPU.
double flat_to_eight(std::int64_t rows) {
  return rows <= 8 ? 10.0 : 10.0 + static_cast<double>(rows - 8);
}

TEST(StepTimes, NothingIsLetInBeforeTheStepAloneWasSeen) {
  StepTimes times;
  EXPECT_EQ(times.widest(2, 1.5, 100), 2);
  times.record(512, 100);
  EXPECT_EQ(times.widest(2, 1.5, 100), 2);
  times.record(2, 10);
  EXPECT_GT(times.widest(2, 1.5, 100), 2);
  EXPECT_EQ(times.widest(2, std::numeric_limits<double>::infinity(), 100), 100);
  EXPECT_EQ(StepTimes().widest(2, std::numeric_limits<double>::infinity(), 100), 100);
}

TEST(StepTimes, FindsHowManyRowsAreFree) {
  StepTimes times;
  times.record(512, flat_to_eight(512));  // a prefill
  int over = 0;
  EXPECT_EQ(run(times, flat_to_eight, 1, 1.05, 200, &over), 8);
  EXPECT_LE(over, 3);  // until it has learned
  over = 0;
  EXPECT_EQ(run(times, flat_to_eight, 1, 1.05, 1000, &over), 8);
  EXPECT_LE(over, 3);
  EXPECT_EQ(run(times, flat_to_eight, 3, 1.05, 20), 8);
  EXPECT_EQ(run(times, flat_to_eight, 20, 1.05, 5000), 21);  // 22 to 23.1
  EXPECT_EQ(run(times, flat_to_eight, 1, 1.0, 300), 8);
}

TEST(StepTimes, WithoutAWideStepBehindItGrowsByHalves) {
  StepTimes times;
  const Cost linear = [](std::int64_t rows) { return 10.0 + 0.1 * static_cast<double>(rows); };
  int over = 0;
  EXPECT_EQ(run(times, linear, 1, 1.1, 50, &over), 11);  // 10.1 to 11.1
  EXPECT_LE(over, 3);
  EXPECT_EQ(run(times, linear, 2, 1.1, 50), 12);
}

TEST(StepTimes, WhereEveryRowCostsNoneIsLetIn) {
  StepTimes times;
  const Cost proportional = [](std::int64_t rows) { return static_cast<double>(rows); };
  times.record(100, 100);
  int over = 0;
  EXPECT_EQ(run(times, proportional, 4, 1.05, 100, &over), 4);
  EXPECT_EQ(over, 0);
}

TEST(StepTimes, RowsThatCostAreSeldomTriedWhereTimesScatter) {
  // Times are up to a fifth above their least, one in 20 is twice that, and a row more costs 15 %.
  std::mt19937 random(5);
  const Cost scattered = [&](std::int64_t rows) {
    const double least = 10.0 + 1.5 * static_cast<double>(rows - 4);
    const double more = std::uniform_real_distribution(1.0, 1.2)(random);
    return least * more * (random() % 20 == 0 ? 2 : 1);
  };
  StepTimes times;
  int wider = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::int64_t rows = times.widest(4, 1.05, 100);
    times.record(rows, scattered(rows));
    if (rows > 4) ++wider;
  }
  EXPECT_LT(wider, 50);
}

TEST(StepTimes, RowsThatAreFreeAreTakenWhereTimesScatterLittle) {
  std::mt19937 random(6);
  StepTimes times;
  int taken = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::int64_t rows = times.widest(1, 1.05, 100);
    const double more = std::uniform_real_distribution(1.0, 1.02)(random);
    times.record(rows, flat_to_eight(rows) * more * (random() % 500 == 0 ? 2 : 1));
    if (rows == 8) ++taken;
  }
  EXPECT_GT(taken, 3500);
}

TEST(StepTimes, TheStepAloneIsSeenNowAndThen) {
  StepTimes times;
  times.record(512, flat_to_eight(512));
  int alone = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::int64_t rows = times.widest(1, 1.05, 100);
    alone += rows == 1 ? 1 : 0;
    times.record(rows, flat_to_eight(rows));
  }
  EXPECT_GE(alone, 5);
  EXPECT_LE(alone, 20);
}

TEST(StepTimes, OneBadMomentIsForgotten) {
  StepTimes times;
  times.record(512, flat_to_eight(512));
  EXPECT_EQ(run(times, flat_to_eight, 1, 1.05, 100), 8);
  for (const std::int64_t rows : {2, 3, 4, 5, 6, 7, 8}) {
    for (int i = 0; i < 50; ++i) times.record(rows, 1000);
  }
  EXPECT_EQ(run(times, flat_to_eight, 1, 1.05, 20), 1);
  times.record(512, flat_to_eight(512));
  EXPECT_EQ(run(times, flat_to_eight, 1, 1.05, 3000), 8);
}

TEST(StepTimes, TheFirstTimeMayBeAnOutlier) {
  StepTimes times;
  for (int i = 0; i < 20; ++i) times.record(4, 10);
  times.record(5, 1000);  // something else held it up
  ASSERT_TRUE(times.usual(5).has_value());
  EXPECT_LE(*times.usual(5), 16);
  EXPECT_LE(*times.usual(6), 20);
}

TEST(StepTimes, FollowsAMachineThatBecomesFaster) {
  StepTimes times;
  times.record(512, 1000 * flat_to_eight(512));
  const Cost slow = [](std::int64_t rows) { return 1000 * flat_to_eight(rows); };
  EXPECT_EQ(run(times, slow, 1, 1.05, 100), 8);
  EXPECT_EQ(run(times, flat_to_eight, 1, 1.05, 3000), 8);
}

}  // namespace
}  // namespace dendrite
