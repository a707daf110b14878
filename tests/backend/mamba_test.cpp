#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "dendrite/error.h"
#include "mamba_fixture.h"
#include "recurrence_checks.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::expect_equals_reference;
using testing_support::expect_forks_equal_replays;
using testing_support::expect_journals_become_the_state;
using testing_support::expect_same_bits_however_cut;
using testing_support::first_difference;
using testing_support::kMambaTolerance;
using testing_support::MambaFixture;
using testing_support::Owned;
using testing_support::Random;
using testing_support::RecurrentBranch;
using testing_support::relative_error;

const std::vector<MambaSizes> kShapes = {
    {1, 16, 1, 16, 4}, {4, 32, 2, 32, 4}, {6, 28, 2, 20, 3}, {3, 13, 3, 7, 2},
    {2, 1, 1, 1, 8},   {2, 64, 2, 48, 4}, {3, 5, 1, 33, 16}, {2, 40, 1, 150, 4},
};

std::string text_of(const MambaSizes& shape) {
  return std::to_string(shape.heads) + " heads of " + std::to_string(shape.head_dim) + ", " +
         std::to_string(shape.groups) + " groups of " + std::to_string(shape.state_dim) +
         ", taps " + std::to_string(shape.taps);
}

class MambaOnPath : public testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<Backend> backend(int threads = 1) {
    return test::make_backend(Numerics::kF32, threads, GetParam());
  }
};

TEST_P(MambaOnPath, EqualsTheRecurrenceInDoublePrecision) {
  const auto device = backend();
  for (const MambaSizes& shape : kShapes) {
    SCOPED_TRACE(text_of(shape));
    for (const bool bias : {true, false}) {
      MambaFixture net(*device, shape, 1);
      if (!bias) net.leave_out_bias();
      expect_equals_reference(net, kMambaTolerance);
    }
  }
}

TEST_P(MambaOnPath, RowsKeepTheirBitsHoweverAPathIsCut) {
  const auto device = backend();
  for (const MambaSizes& shape : kShapes) {
    SCOPED_TRACE(text_of(shape));
    MambaFixture net(*device, shape, 2);
    expect_same_bits_however_cut(net);
  }
}

TEST_P(MambaOnPath, ForksEqualTheirReplays) {
  const auto device = backend(2);
  for (const MambaSizes& shape : kShapes) {
    SCOPED_TRACE(text_of(shape));
    MambaFixture net(*device, shape, 4);
    expect_forks_equal_replays(net);
  }
}

TEST_P(MambaOnPath, AWholeChunkOfJournalsBecomesTheStateThatARunWouldHaveLeft) {
  const auto device = backend();
  for (const MambaSizes& shape : kShapes) {
    SCOPED_TRACE(text_of(shape));
    MambaFixture net(*device, shape, 6);
    expect_journals_become_the_state(net, net.op().out_columns());
  }
}

TEST_P(MambaOnPath, ThreadsDoNotChangeBits) {
  std::vector<float> expected;
  for (const int threads : {1, 2, 5}) {
    const auto device = backend(threads);
    MambaFixture net(*device, {20, 32, 2, 64, 4}, 7);
    RecurrentBranch branch;
    net.add(branch, net.make_rows(100), 100);
    net.run();
    if (threads == 1) expected = net.out;
    EXPECT_EQ(first_difference(net.out, expected), -1) << threads;
  }
}

/// Where a row lets nothing of what was before through, rows behind it are as exact as others.
TEST_P(MambaOnPath, StaysExactWhateverTheSteps) {
  const auto device = backend();
  for (const float scale : {0.0F, 30.0F, 1e4F, 5e37F}) {
    MambaFixture net(*device, {4, 24, 2, 20, 4}, 8, scale);
    RecurrentBranch branch;
    net.add(branch, net.make_rows(50), 50);
    net.run();
    const auto expected = net.reference(branch.rows);
    EXPECT_LE(relative_error(net.out_of(branch.rows), expected.out), kMambaTolerance) << scale;
    EXPECT_EQ(first_difference(net.out_of(branch.rows), net.replayed(branch.rows)), -1);
  }
}

TEST_P(MambaOnPath, SquaredReluEqualsItsFormula) {
  const auto device = backend(2);
  for (const std::int64_t cols : {1, 30, 1537}) {
    const std::int64_t rows = 9;
    const auto x = Random(static_cast<std::uint32_t>(cols)).normal(rows * cols, 3.0F);
    Owned in(*device, rows, cols, cols + 1);
    in.set(*device, x);
    device->squared_relu(in.tensor);
    const auto got = in.get(*device);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float expected = x[i] > 0 ? x[i] * x[i] : 0.0F;
      ASSERT_EQ(got[i], expected) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, MambaOnPath, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& info) { return info.param; });

TEST(Mamba, HasTheSameBitsOnAllPathsThatFuse) {
  if (test::on_cuda()) GTEST_SKIP() << "paths of the CPU are compared";
  for (const MambaSizes& shape : kShapes) {
    std::vector<float> expected;
    for (const std::string& path : test::kernel_paths()) {
      if (path == "portable") continue;
      const auto device = make_cpu_backend(Numerics::kBF16, 1, path);
      MambaFixture net(*device, shape, 10);
      RecurrentBranch branch;
      net.add(branch, net.make_rows(48), 48);
      net.run();
      if (expected.empty()) expected = net.out;
      EXPECT_EQ(first_difference(net.out, expected), -1) << path << ": " << text_of(shape);
    }
  }
}

TEST(Mamba, RefusesWhatDoesNotFitNamingIt) {
  const auto device = make_cpu_backend(Numerics::kF32, 1);
  MambaFixture net(*device, {2, 4, 1, 8, 4}, 11);
  Owned in(*device, 3, net.width());
  Owned out(*device, 3, net.out_width());
  in.set(*device, std::vector<float>(static_cast<std::size_t>(3 * net.width())));
  Mamba good = net.op();
  good.in = in.tensor;
  good.out = out.tensor;
  good.states = &net.states();
  RecurrencePlan plan;
  plan.runs = {{.row_begin = 0, .row_end = 3, .first_position = 18, .anchor = 0, .known = 2}};
  plan.journals = {2, 3, -1};
  plan.known = {0, 1};
  good.plan = &plan;
  const auto error_with = [&](const std::function<void(Mamba&)>& change) -> std::string {
    Mamba args = good;
    change(args);
    try {
      device->mamba(args);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_with([](Mamba&) {}), "");
  EXPECT_EQ(error_with([](Mamba& args) { args.state_dim = 0; }),
            "mamba: state_dim is 0, expected a positive number");
  EXPECT_EQ(error_with([](Mamba& args) { args.groups = 3; }),
            "mamba: heads is 2, expected a multiple of groups 3");
  EXPECT_EQ(error_with([](Mamba& args) { args.most_dt = 0.01F; }),
            "mamba: least_dt is 0.020000 and most_dt 0.010000, expected 0 or more, and not less "
            "than that");
  EXPECT_EQ(error_with([](Mamba& args) { args.taps = 17; }), "mamba: taps is 17, expected 2..16");
  EXPECT_EQ(error_with([](Mamba& args) { args.taps = 3; }),
            "mamba: anchor_values is 136, expected 112");
  EXPECT_EQ(error_with([](Mamba& args) { args.in = args.in.columns(0, 5); }),
            "mamba: in has shape [3, 5] with stride 34, expected [3, 34]");
}

}  // namespace
}  // namespace dendrite
