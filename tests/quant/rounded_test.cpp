#include "quant/rounded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "support/f32_matrix.h"

namespace dendrite {
namespace {

constexpr std::int64_t kCols = 320;

StoredMatrix matrix_of(const std::vector<float>& values) {
  return test::f32_matrix(values, std::ssize(values) / kCols, kCols);
}

std::vector<float> normal(std::int64_t rows) {
  std::mt19937 engine(3);
  std::normal_distribution<float> distribution(0.01F, 0.02F);
  std::vector<float> values(static_cast<std::size_t>(rows * kCols));
  for (float& value : values) value = distribution(engine);
  return values;
}

TEST(Rounded, ValuesAreWithinHalfAStepOfWhatTheyWere) {
  const std::vector<float> values = normal(4);
  const StoredMatrix matrix = matrix_of(values);
  for (const auto& [rounding, steps] :
       {std::pair(WeightRounding::kInt8, 254.0F), {WeightRounding::kInt4, 15.0F}}) {
    const Format& format = rounded_format(DType::kF32, rounding);
    for (std::int64_t row = 0; row < matrix.rows; ++row) {
      std::vector<float> got(kCols);
      format.widen(matrix, row, 0, got);
      for (std::size_t i = 0; i < kCols; i += 32) {
        const auto was = std::span(values).subspan(static_cast<std::size_t>(row * kCols) + i, 32);
        const auto [low, high] = std::ranges::minmax(was);
        const float range =
            rounding == WeightRounding::kInt8 ? 2 * std::max(high, -low) : high - low;
        for (std::size_t k = 0; k < 32; ++k) {
          // Half a step, and what f16 takes of scale and minimum.
          EXPECT_NEAR(got[i + k], was[k], range / steps * 0.5F + range * 1e-3F + 1e-5F);
        }
      }
    }
  }
}

TEST(Rounded, GroupsAreWhatIsWidened) {
  const std::vector<float> values = normal(2);
  const StoredMatrix matrix = matrix_of(values);
  for (const auto rounding : {WeightRounding::kInt8, WeightRounding::kInt4}) {
    const Format& format = rounded_format(DType::kF32, rounding);
    const Groups groups = *format.groups(matrix);
    std::vector<float> widened(kCols);
    format.widen(matrix, 1, 0, widened);
    for (const std::int64_t begin : {std::int64_t{0}, std::int64_t{256}}) {
      GroupedValues got;
      const std::int64_t count = std::min(GroupedValues::kMost, kCols - begin);
      format.read_groups(matrix, 1, begin, count, got);
      for (std::int64_t i = 0; i < count; ++i) {
        EXPECT_EQ(got.value(groups, i), widened[static_cast<std::size_t>(begin + i)]);
      }
    }
  }
}

TEST(Rounded, FourBitsHaveScalesAndOffsetsInBF16AndMinimumsInF16) {
  std::vector<float> values = normal(3);
  for (std::size_t i = 0; i < kCols; ++i) {
    values[kCols + i] = 1 + 0.01F * values[kCols + i];  // far from 0
    values[2 * kCols + i] *= 1e-6F;
  }
  const StoredMatrix matrix = matrix_of(values);
  const Format& format = rounded_format(DType::kF32, WeightRounding::kInt4);
  EXPECT_TRUE(format.groups(matrix)->raised);
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    GroupedValues got;
    format.read_groups(matrix, row, 0, 256, got);
    for (std::size_t group = 0; group < 256 / 32; ++group) {
      const float scale = got.scales[group];
      const float minimum = got.minimums[group];
      const float offset = -(minimum + 16 * scale);
      EXPECT_EQ(to_f32(to_bf16(scale)), scale);
      EXPECT_EQ(to_f32(to_bf16(offset)), offset);
      EXPECT_EQ(to_f32(to_f16(scale)), scale);
      EXPECT_EQ(to_f32(to_f16(minimum)), minimum);
    }
  }
}

TEST(Rounded, ZerosStayZerosAndWhatIsNotFiniteStaysSo) {
  std::vector<float> values(kCols, 0.0F);
  values[40] = std::nanf("");
  values[70] = 0.9375F;  // 15 steps of 1 / 16
  const StoredMatrix matrix = matrix_of(values);
  for (const auto rounding : {WeightRounding::kInt8, WeightRounding::kInt4}) {
    const Format& format = rounded_format(DType::kF32, rounding);
    std::vector<float> got(kCols);
    format.widen(matrix, 0, 0, got);
    EXPECT_EQ(got[0], 0.0F);
    EXPECT_EQ(got[39], 0.0F);
    EXPECT_TRUE(std::isnan(got[40]));
    EXPECT_NEAR(got[70], 0.9375F, 1e-3F);
    GroupedValues groups;
    format.read_groups(matrix, 0, 0, 256, groups);
    EXPECT_TRUE(std::isfinite(groups.scales[0]));
    EXPECT_TRUE(std::isnan(groups.scales[1]));  // so that a packer sees it
  }
}

}  // namespace
}  // namespace dendrite
