#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "delta_fixture.h"
#include "dendrite/error.h"
#include "recurrence_checks.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::DeltaFixture;
using testing_support::expect_equals_reference;
using testing_support::expect_forks_equal_replays;
using testing_support::expect_journals_become_the_state;
using testing_support::expect_same_bits_however_cut;
using testing_support::expect_trees_equal_replays;
using testing_support::first_difference;
using testing_support::kDeltaTolerance;
using testing_support::kNan;
using testing_support::Owned;
using testing_support::Random;
using testing_support::RecurrentBranch;
using testing_support::relative_error;

const std::vector<DeltaNetSizes> kShapes = {
    {1, 1, 16, 16, 4},
    {2, 4, 32, 32, 4},
    {2, 6, 20, 28, 3},
    {3, 3, 7, 13, 2},
    {1, 2, 1, 1, 8},
    {2, 2, 48, 64, 4},
    {1, 3, 33, 5, 16},
    {1, 1, 150, 40, 4},
    {2, 4, 128, 128, 4},
    // A GPU goes over these by pieces, but for the last; over rows alone of those with four value
    // heads by a kernel of its own.
    {1, 1, 128, 128, 4},
    {1, 4, 128, 160, 4},
    {2, 6, 128, 48, 4},
    {1, 5, 128, 128, 4},
    // Channels decay by themselves.
    {1, 1, 16, 16, 4, true},
    {3, 3, 20, 28, 3, true},
    {2, 2, 7, 13, 2, true},
    {1, 1, 1, 1, 8, true},
    {2, 2, 33, 5, 16, true},
    {2, 2, 128, 128, 4, true},
};

std::string text_of(const DeltaNetSizes& shape) {
  return std::to_string(shape.key_heads) + " key heads, " + std::to_string(shape.value_heads) +
         " value heads, " + std::to_string(shape.key_dim) + " x " +
         std::to_string(shape.value_dim) + ", taps " + std::to_string(shape.taps) +
         (shape.by_channel ? ", by channel" : "");
}

class DeltaNetOnPath : public testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<Backend> backend(int threads = 1) {
    return test::make_backend(Numerics::kF32, threads, GetParam());
  }
};

TEST_P(DeltaNetOnPath, EqualsTheRecurrenceInDoublePrecision) {
  const auto device = backend();
  for (const DeltaNetSizes& shape : kShapes) {
    SCOPED_TRACE(text_of(shape));
    DeltaFixture net(*device, shape, 1);
    expect_equals_reference(net, kDeltaTolerance);
  }
}

TEST_P(DeltaNetOnPath, RowsKeepTheirBitsHoweverAPathIsCut) {
  const auto device = backend();
  for (const DeltaNetSizes& shape : kShapes) {
    SCOPED_TRACE(text_of(shape));
    DeltaFixture net(*device, shape, 2);
    expect_same_bits_however_cut(net);
  }
}

TEST_P(DeltaNetOnPath, LongRunsHaveTheBitsOfShortOnes) {
  const auto device = backend(2);
  for (const DeltaNetSizes& shape : kShapes) {
    if (shape.key_dim != 128) continue;
    SCOPED_TRACE(text_of(shape));
    DeltaFixture net(*device, shape, 12);
    expect_same_bits_however_cut(net, 330);
  }
}

TEST_P(DeltaNetOnPath, ForksEqualTheirReplays) {
  const auto device = backend(2);
  for (const DeltaNetSizes& shape : kShapes) {
    SCOPED_TRACE(text_of(shape));
    DeltaFixture net(*device, shape, 4);
    expect_forks_equal_replays(net);
  }
}

TEST_P(DeltaNetOnPath, TreesOfRowsEqualTheirReplays) {
  const auto device = backend(2);
  for (const DeltaNetSizes& shape : kShapes) {
    SCOPED_TRACE(text_of(shape));
    DeltaFixture net(*device, shape, 14);
    expect_trees_equal_replays(net);
  }
}

TEST_P(DeltaNetOnPath, AWholeChunkOfJournalsBecomesTheStateThatARunWouldHaveLeft) {
  const auto device = backend();
  for (const DeltaNetSizes& shape : kShapes) {
    SCOPED_TRACE(text_of(shape));
    DeltaFixture net(*device, shape, 6);
    expect_journals_become_the_state(net, 0);
  }
}

TEST_P(DeltaNetOnPath, ThreadsDoNotChangeBits) {
  std::vector<float> expected;
  for (const DeltaNetSizes& shape :
       {DeltaNetSizes{5, 10, 64, 64, 4}, DeltaNetSizes{7, 7, 64, 64, 4, true}}) {
    for (const int threads : {1, 2, 5}) {
      const auto device = backend(threads);
      DeltaFixture net(*device, shape, 7);
      RecurrentBranch branch;
      net.add(branch, net.make_rows(100), 100);
      net.run();
      if (threads == 1) expected = net.out;
      EXPECT_EQ(first_difference(net.out, expected), -1) << threads << ": " << text_of(shape);
    }
  }
}

TEST_P(DeltaNetOnPath, StaysFiniteWhateverTheGates) {
  const auto device = backend();
  for (const DeltaNetSizes& shape :
       {DeltaNetSizes{2, 4, 20, 24, 4}, DeltaNetSizes{3, 3, 20, 24, 4, true}}) {
    for (const float scale : {0.0F, 30.0F, 1e4F, 5e37F}) {
      DeltaFixture net(*device, shape, 8, scale);
      RecurrentBranch branch;
      net.add(branch, net.make_rows(50), 50);
      net.run();
      const auto expected = net.reference(branch.rows);
      EXPECT_LE(relative_error(net.out_of(branch.rows), expected.out), 1e-4) << scale;
      EXPECT_EQ(first_difference(net.out_of(branch.rows), net.replayed(branch.rows)), -1);
    }
  }
  // Rows of zeros: nothing is written, nothing is read.
  DeltaFixture net(*device, {2, 4, 20, 24, 4}, 9);
  RecurrentBranch branch;
  const std::int64_t first = net.make_rows(40);
  std::fill(net.in.begin(), net.in.end(), 0.0F);
  net.add(branch, first, 40);
  net.run();
  for (const float x : net.out) ASSERT_EQ(x, 0.0F);
}

TEST_P(DeltaNetOnPath, ChannelsThatForgetInARowKeepTheDigitsOfWhatComesBehind) {
  const auto device = backend();
  const DeltaNetSizes shape{2, 2, 32, 32, 4, true};
  DeltaFixture net(*device, shape, 13);
  const std::int64_t first = net.make_rows(48);
  // In the first half of each chunk half of the channels decay by e^-70 and more a row, then by
  // little, as the others do. Differences of sums of logarithms would be off by 1e-5.
  for (std::int64_t i = 0; i < std::ssize(net.in); ++i) {
    const std::int64_t column = i % net.width() - shape.decays_at();
    if (column < 0 || column >= shape.decay_columns()) continue;
    const bool forgets = i / net.width() % kChunkTokens < 8 && column % 2 == 0;
    net.in[static_cast<std::size_t>(i)] = forgets ? 70.0F + static_cast<float>(column % 19) : -1.0F;
  }
  RecurrentBranch branch;
  net.add(branch, first, 48);
  net.run();
  const auto expected = net.reference(branch.rows);
  EXPECT_LE(relative_error(net.out_of(branch.rows), expected.out), 6e-6);
  EXPECT_EQ(first_difference(net.out_of(branch.rows), net.replayed(branch.rows)), -1);
}

TEST_P(DeltaNetOnPath, GateEqualsDoublePrecisionAlsoFarOut) {
  const auto device = backend(2);
  for (const std::int64_t cols : {1, 30, 768, 1537}) {
    const std::int64_t rows = 9;
    Random random(static_cast<std::uint32_t>(cols));
    auto x = random.normal(rows * 2 * cols, 4.0F);
    x[static_cast<std::size_t>(cols)] = 300.0F;
    x[static_cast<std::size_t>(3 * cols)] = -300.0F;
    x[static_cast<std::size_t>(5 * cols)] = 0.0F;
    std::vector<double> expected;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < cols; ++i) {
        const auto at = static_cast<std::size_t>(r * 2 * cols + i);
        const auto gate = static_cast<double>(x[at + static_cast<std::size_t>(cols)]);
        expected.push_back(static_cast<double>(x[at]) / (1 + std::exp(-gate)));
      }
    }
    Owned in(*device, rows, 2 * cols, 2 * cols + 1);
    in.set(*device, x);
    Owned out(*device, rows, cols, cols + 2);
    device->gate(out.tensor, in.tensor.columns(0, cols), in.tensor.columns(cols, cols));
    const auto got = out.get(*device);
    EXPECT_LE(relative_error(got, expected), 1e-5) << cols;
    // In place.
    device->gate(in.tensor.columns(0, cols), in.tensor.columns(0, cols),
                 in.tensor.columns(cols, cols));
    const auto whole = in.get(*device);
    for (std::int64_t r = 0; r < rows; ++r) {
      EXPECT_EQ(first_difference(std::span(whole).subspan(static_cast<std::size_t>(r * 2 * cols),
                                                          static_cast<std::size_t>(cols)),
                                 std::span(got).subspan(static_cast<std::size_t>(r * cols),
                                                        static_cast<std::size_t>(cols))),
                -1);
    }
    EXPECT_THROW(device->gate(out.tensor, in.tensor, in.tensor), Error);
  }
}

TEST_P(DeltaNetOnPath, GatesOfHeadsEqualDoublePrecision) {
  const auto device = backend();
  const std::int64_t rows = 5;
  for (const std::int64_t dim : {1, 8, 20, 64}) {
    for (const std::int64_t heads : {1, 3}) {
      Random random(static_cast<std::uint32_t>(dim));
      const auto x = random.normal(rows * heads * dim);
      const auto gates = random.normal(rows * heads, 4.0F);
      std::vector<double> expected;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto gate = static_cast<double>(gates[i / static_cast<std::size_t>(dim)]);
        expected.push_back(static_cast<double>(x[i]) / (1 + std::exp(-gate)));
      }
      Owned in(*device, rows, heads * dim, heads * dim + 1);
      in.set(*device, x);
      Owned gate(*device, rows, heads, heads + 3);
      gate.set(*device, gates);
      Owned out(*device, rows, heads * dim, heads * dim + 2);
      device->gate(out.tensor, in.tensor, gate.tensor);
      EXPECT_LE(relative_error(out.get(*device), expected), 1e-5) << heads << " of " << dim;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, DeltaNetOnPath, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& info) { return info.param; });

TEST(DeltaNet, HasTheSameBitsOnAllPathsThatFuse) {
  if (test::on_cuda()) GTEST_SKIP() << "paths of the CPU are compared";
  for (const DeltaNetSizes& shape : kShapes) {
    std::vector<float> expected;
    std::vector<float> anchor;
    for (const std::string& path : test::kernel_paths()) {
      if (path == "portable") continue;
      const auto device = make_cpu_backend(Numerics::kBF16, 1, path);
      DeltaFixture net(*device, shape, 10);
      RecurrentBranch branch;
      net.add(branch, net.make_rows(48), 48);
      net.run();
      if (expected.empty()) {
        expected = net.out;
        anchor = net.anchor(branch.anchor);
      }
      EXPECT_EQ(first_difference(net.out, expected), -1) << path << ": " << text_of(shape);
      EXPECT_EQ(first_difference(net.anchor(branch.anchor), anchor), -1) << path;
    }
  }
}

/// What an error of `fn` says; "" where there is none.
std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(DeltaNet, RefusesWhatDoesNotFitNamingIt) {
  const auto device = make_cpu_backend(Numerics::kF32, 1);
  const DeltaNetSizes shape{2, 4, 8, 8, 4};
  DeltaFixture net(*device, shape, 11);
  Owned in(*device, 3, net.width());
  Owned out(*device, 3, net.out_width());
  DeltaNet good = net.op();
  good.in = in.tensor;
  good.out = out.tensor;
  good.states = &net.states();
  RecurrencePlan plan;
  plan.runs = {{.row_begin = 0, .row_end = 3, .first_position = 18, .anchor = 0, .known = 2}};
  plan.journals = {2, 3, -1};
  plan.known = {0, 1};
  good.plan = &plan;
  in.set(*device, std::vector<float>(static_cast<std::size_t>(3 * net.width())));
  EXPECT_EQ(error_of([&] { device->delta_net(good); }), "");

  const auto with_net = [&](const std::function<void(DeltaNet&)>& change) {
    DeltaNet args = good;
    change(args);
    return error_of([&] { device->delta_net(args); });
  };
  EXPECT_EQ(with_net([](DeltaNet& args) { args.value_heads = 3; }),
            "delta_net: value_heads is 3, expected a multiple of key_heads 2");
  EXPECT_EQ(with_net([](DeltaNet& args) { args.by_channel = true; }),
            "delta_net: value_heads is 4, expected key_heads 2 where channels decay by themselves");
  EXPECT_EQ(with_net([](DeltaNet& args) { args.key_dim = 0; }),
            "delta_net: key_dim is 0, expected a positive number");
  EXPECT_EQ(with_net([](DeltaNet& args) { args.taps = 1; }),
            "delta_net: taps is 1, expected 2..16");
  EXPECT_EQ(with_net([](DeltaNet& args) { args.taps = 3; }),
            "delta_net: anchor_values is 448, expected 384");
  EXPECT_EQ(with_net([](DeltaNet& args) { args.layer = 2; }),
            "delta_net: layer is 2, expected 0..1");
  EXPECT_EQ(with_net([&](DeltaNet& args) { args.in = args.in.columns(0, 5); }),
            "delta_net: in has shape [3, 5] with stride 104, expected [3, 104]");
  EXPECT_EQ(with_net([&](DeltaNet& args) { args.out = out.tensor.first_rows(2); }),
            "delta_net: out has shape [2, 32] with stride 32, expected [3, 32]");

  const auto with_plan = [&](const std::function<void(RecurrencePlan&)>& change) {
    RecurrencePlan changed = plan;
    change(changed);
    DeltaNet args = good;
    args.plan = &changed;
    return error_of([&] { device->delta_net(args); });
  };
  using Plan = RecurrencePlan;
  EXPECT_EQ(with_plan([](Plan& p) { p.journals.resize(4); }),
            "delta_net: the plan has 4 rows, expected at most in's 3");
  EXPECT_EQ(with_plan([](Plan& p) { p.journals[1] = 2000; }),
            "delta_net: journal of a row is 2000, expected -1..1999");
  EXPECT_EQ(with_plan([](Plan& p) { p.known[1] = -1; }),
            "delta_net: known journal is -1, expected 0..1999");
  EXPECT_EQ(with_plan([](Plan& p) { p.anchors = {120}; }),
            "delta_net: anchor behind a chunk is 120, expected -1..119");
  EXPECT_EQ(with_plan([](Plan& p) { p.runs[0].row_end = 4; }),
            "delta_net: rows of a run are [0, 4), expected some of [0, 3)");
  EXPECT_EQ(with_plan([](Plan& p) { p.runs[0].known = 17; }),
            "delta_net: known of a run is 17, expected 0..16");
  EXPECT_EQ(with_plan([](Plan& p) { p.runs[0].known = 1; }),
            "delta_net: first_position is 18 and known 1, expected their difference to be a "
            "multiple of 16");
  EXPECT_EQ(with_plan([](Plan& p) { p.runs[0].known_begin = 1; }),
            "delta_net: journals known to a run are [1, 3), expected some of [0, 2)");
  EXPECT_EQ(with_plan([](Plan& p) { p.runs[0].anchor = -1; }),
            "delta_net: anchor is -1, expected 0..119");
  EXPECT_EQ(with_plan([](Plan& p) { p.runs[0].first_position = 2; }),
            "delta_net: anchor is 0, expected -1 where no chunk is before");
  EXPECT_EQ(with_plan([](Plan& p) {
              p.runs[0] = {.row_begin = 0, .row_end = 3, .first_position = 30, .anchor = 0};
              p.runs[0].known = 14;
              p.known.resize(14);
            }),
            "delta_net: anchors of a run are [0, 1), expected some of [0, 0)");
}

TEST(StateStore, WhatIsWrittenIsReadAndSlotsAreChecked) {
  const auto device = make_cpu_backend(Numerics::kF32, 1);
  const auto store = device->make_state_store({3, 5, 2, 4, 6});
  EXPECT_EQ(store->shape().size_bytes(), 4 * (3 * 5 * 4 + 3 * 2 * 6));
  Random random(12);
  std::vector<std::vector<float>> anchors;
  std::vector<std::vector<float>> journals;
  for (std::int32_t slot = 0; slot < 4; ++slot) {
    store->write_anchor(slot, anchors.emplace_back(random.normal(15)));
  }
  for (std::int32_t slot = 0; slot < 6; ++slot) {
    store->write_journal(slot, journals.emplace_back(random.normal(6)));
  }
  for (std::int32_t slot = 0; slot < 4; ++slot) {
    std::vector<float> anchor(15);
    store->read_anchor(slot, anchor);
    EXPECT_EQ(anchor, anchors[static_cast<std::size_t>(slot)]);
  }
  for (std::int32_t slot = 0; slot < 6; ++slot) {
    std::vector<float> journal(6);
    store->read_journal(slot, journal);
    EXPECT_EQ(journal, journals[static_cast<std::size_t>(slot)]);
  }
  std::vector<float> values(15);
  EXPECT_EQ(error_of([&] { store->read_anchor(4, values); }),
            "read_anchor: slot is 4, expected 0..3");
  EXPECT_EQ(error_of([&] { store->write_anchor(-1, values); }),
            "write_anchor: slot is -1, expected 0..3");
  EXPECT_EQ(error_of([&] { store->read_journal(0, values); }),
            "read_journal: number of values is 15, expected 6");
  EXPECT_EQ(error_of([&] { store->write_journal(6, values); }),
            "write_journal: slot is 6, expected 0..5");
  EXPECT_EQ(error_of([&] {
              device->make_state_store({1, 0, 2, 4, 6});
            }),
            "make_state_store: anchor_values is 0, expected a positive number");
  EXPECT_EQ(error_of([&] {
              device->make_state_store({1, 1, 2, -4, 6});
            }),
            "make_state_store: count is -4, expected 0 or more");
}

}  // namespace
}  // namespace dendrite
