#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "dendrite/error.h"
#include "recurrence_checks.h"
#include "short_conv_fixture.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::expect_forks_equal_replays;
using testing_support::expect_same_bits_however_cut;
using testing_support::first_difference;
using testing_support::Owned;
using testing_support::RecurrentBranch;
using testing_support::relative_error;
using testing_support::ShortConvFixture;
using Keep = ShortConvFixture::Keep;

const std::vector<ShortConvSizes> kShapes = {{1, 2}, {5, 3}, {16, 3}, {33, 4}, {64, 7}, {150, 16}};

std::string text_of(const ShortConvSizes& shape) {
  return std::to_string(shape.channels) + " channels, taps " + std::to_string(shape.taps);
}

class ShortConvOnPath : public testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<Backend> backend(int threads = 1) {
    return test::make_backend(Numerics::kF32, threads, GetParam());
  }
};

TEST_P(ShortConvOnPath, EqualsTheConvolutionInDoublePrecision) {
  const auto device = backend();
  for (const ShortConvSizes& shape : kShapes) {
    SCOPED_TRACE(text_of(shape));
    for (const bool bias : {false, true}) {
      ShortConvFixture conv(*device, shape, 1, bias);
      for (const std::int64_t length : {1, 2, 15, 16, 17, 33, 70}) {
        RecurrentBranch branch;
        conv.clear_states();
        conv.add(branch, conv.make_rows(length), length);
        EXPECT_TRUE(conv.run()) << "padding or another layer was written";
        const auto expected = conv.reference(branch.rows);
        EXPECT_LE(relative_error(conv.out_of(branch.rows), expected), 1e-5) << length;
      }
    }
  }
}

TEST_P(ShortConvOnPath, RowsKeepTheirBitsHoweverAPathIsCut) {
  const auto device = backend();
  for (const ShortConvSizes& shape : kShapes) {
    SCOPED_TRACE(text_of(shape));
    ShortConvFixture conv(*device, shape, 2, true);
    expect_same_bits_however_cut(conv);
  }
}

TEST_P(ShortConvOnPath, ForksEqualTheirReplays) {
  const auto device = backend(2);
  for (const ShortConvSizes& shape : kShapes) {
    SCOPED_TRACE(text_of(shape));
    ShortConvFixture conv(*device, shape, 4);
    expect_forks_equal_replays(conv);
  }
}

TEST_P(ShortConvOnPath, AnAnchorIsWhatWasConvolvedLastHoweverItCameToBe) {
  const auto device = backend();
  for (const ShortConvSizes& shape : kShapes) {
    SCOPED_TRACE(text_of(shape));
    ShortConvFixture conv(*device, shape, 6);
    const std::int64_t first = conv.make_rows(32);
    RecurrentBranch eager;
    conv.add(eager, first, 16);
    RecurrentBranch lazy = eager;
    conv.add(eager, first + 16, 16);
    conv.add(lazy, first + 16, 16, Keep::kAll, false);
    conv.run();
    ASSERT_EQ(lazy.journals.size(), 16U);
    conv.add(lazy, 0, 0);  // of what is known alone
    conv.run();
    ASSERT_EQ(lazy.journals.size(), 0U);
    const auto anchor = conv.anchor(eager.anchor);
    EXPECT_EQ(first_difference(conv.anchor(lazy.anchor), anchor), -1);
    const auto values = static_cast<std::size_t>(shape.anchor_values());
    for (std::int64_t i = 0; i < shape.anchor_values(); ++i) {
      const std::int64_t row = first + 32 - (shape.taps - 1) + i / shape.channels;
      const std::int64_t at = row * conv.width() + i % shape.channels;
      const float u = conv.in[static_cast<std::size_t>(at)] *
                      conv.in[static_cast<std::size_t>(at + 2 * shape.channels)];
      ASSERT_EQ(anchor[values + static_cast<std::size_t>(i)], u);
    }
    // The layer beside it is untouched.
    EXPECT_TRUE(std::all_of(anchor.begin(), anchor.begin() + shape.anchor_values(),
                            [](float x) { return x == 0; }));
  }
}

TEST_P(ShortConvOnPath, ThreadsDoNotChangeBits) {
  std::vector<float> expected;
  for (const int threads : {1, 2, 5}) {
    const auto device = backend(threads);
    ShortConvFixture conv(*device, {1000, 4}, 7);
    RecurrentBranch branch;
    conv.add(branch, conv.make_rows(100), 100);
    conv.run();
    if (threads == 1) expected = conv.out;
    EXPECT_EQ(first_difference(conv.out, expected), -1) << threads;
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, ShortConvOnPath, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& info) { return info.param; });

TEST(ShortConv, HasTheSameBitsOnAllPathsThatFuse) {
  if (test::on_cuda()) GTEST_SKIP() << "paths of the CPU are compared";
  for (const ShortConvSizes& shape : kShapes) {
    std::vector<float> expected;
    for (const std::string& path : test::kernel_paths()) {
      if (path == "portable") continue;
      const auto device = make_cpu_backend(Numerics::kBF16, 1, path);
      ShortConvFixture conv(*device, shape, 10, true);
      RecurrentBranch branch;
      conv.add(branch, conv.make_rows(48), 48);
      conv.run();
      if (expected.empty()) expected = conv.out;
      EXPECT_EQ(first_difference(conv.out, expected), -1) << path << ": " << text_of(shape);
    }
  }
}

TEST(ShortConv, RefusesWhatDoesNotFitNamingIt) {
  const auto device = make_cpu_backend(Numerics::kF32, 1);
  ShortConvFixture conv(*device, {8, 4}, 11);
  Owned in(*device, 3, conv.width());
  Owned out(*device, 3, conv.out_width());
  in.set(*device, std::vector<float>(static_cast<std::size_t>(3 * conv.width())));
  ShortConv good = conv.op();
  good.in = in.tensor;
  good.out = out.tensor;
  good.states = &conv.states();
  RecurrencePlan plan;
  plan.runs = {{.row_begin = 0, .row_end = 3, .first_position = 18, .anchor = 0, .known = 2}};
  plan.journals = {2, 3, -1};
  plan.known = {0, 1};
  good.plan = &plan;
  const auto error_with = [&](const std::function<void(ShortConv&)>& change) -> std::string {
    ShortConv args = good;
    change(args);
    try {
      device->short_conv(args);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_with([](ShortConv&) {}), "");
  EXPECT_EQ(error_with([](ShortConv& args) { args.channels = 0; }),
            "short_conv: channels is 0, expected a positive number");
  EXPECT_EQ(error_with([](ShortConv& args) { args.taps = 17; }),
            "short_conv: taps is 17, expected 2..16");
  EXPECT_EQ(error_with([](ShortConv& args) { args.taps = 3; }),
            "short_conv: anchor_values is 24, expected 16");
  EXPECT_EQ(error_with([](ShortConv& args) { args.in = args.in.columns(0, 5); }),
            "short_conv: in has shape [3, 5] with stride 24, expected [3, 24]");
  RecurrencePlan other = plan;
  other.known[1] = -1;
  EXPECT_EQ(error_with([&](ShortConv& args) { args.plan = &other; }),
            "short_conv: known journal is -1, expected 0..1999");
}

}  // namespace
}  // namespace dendrite
