// Rounding to E4M3: single values against all codes, and vectors with a power of two.
#include "quant/e4m3.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "core/dtype.h"

namespace dendrite {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// By looking at all codes: the nearest value; of two the one with an even code.
std::uint8_t nearest(float value) {
  std::uint8_t best = 0;
  for (std::uint8_t code = 1; code < 127; ++code) {
    const auto distance = [value](std::uint8_t of) {
      return std::abs(static_cast<double>(std::abs(value)) - static_cast<double>(e4m3_value(of)));
    };
    if (distance(code) < distance(best) || (distance(code) == distance(best) && code % 2 == 0)) {
      best = code;
    }
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 128 : 0));
}

TEST(E4m3, CodesOfValuesAreTheirOwn) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 127) == 127) continue;
    EXPECT_EQ(e4m3_code(e4m3_value(static_cast<std::uint8_t>(code))), code);
  }
}

TEST(E4m3, RoundsToTheNearestCodeAndTiesToEven) {
  for (std::uint8_t code = 0; code < 126; ++code) {
    const float below = e4m3_value(code);
    const float above = e4m3_value(static_cast<std::uint8_t>(code + 1));
    const float middle = (below + above) / 2;
    for (const float value :
         {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, kInfinity)}) {
      EXPECT_EQ(e4m3_code(value), nearest(value)) << value;
      EXPECT_EQ(e4m3_code(-value), nearest(-value)) << -value;
    }
  }
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 100);
  for (int i = 0; i < 2000; ++i) {
    const float value = std::ldexp(normal(random), -(i % 24));
    ASSERT_EQ(e4m3_code(value), nearest(value)) << value;
  }
}

TEST(E4m3, LargeValuesAreTheLargestCodeAndOthersThanNumbersNaN) {
  for (const float value : {448.0F, 464.0F, 465.0F, 1e6F, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(e4m3_code(value), 126);
    EXPECT_EQ(e4m3_code(-value), 254);
  }
  for (const float value : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(std::isnan(e4m3_value(e4m3_code(value))));
  }
  EXPECT_EQ(e4m3_code(-0.0F), 128);
  EXPECT_EQ(e4m3_code(std::numeric_limits<float>::denorm_min()), 0);
}

std::vector<float> random_vector(std::mt19937& random, int exponent) {
  std::normal_distribution<float> normal;
  std::vector<float> values(80);
  for (float& value : values) value = std::ldexp(normal(random), exponent);
  return values;
}

struct Rounded {
  std::array<std::uint8_t, 80> codes{};
  std::uint8_t scale = 0;
  std::vector<float> values = std::vector<float>(80);

  explicit Rounded(std::span<const float> from) {
    scale = round_to_e4m3(from, codes.data());
    widen_e4m3(codes.data(), scale, values);
  }
};

TEST(E4m3Vectors, AreAsExactForEverySizeAndExactInBf16) {
  std::mt19937 random(2);
  for (int exponent = -100; exponent <= 120; ++exponent) {
    const std::vector<float> values = random_vector(random, exponent);
    const Rounded rounded(values);
    double most = 0;
    for (const float value : values) most = std::max(most, std::abs(static_cast<double>(value)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto value = static_cast<double>(values[i]);
      const double error = std::abs(static_cast<double>(rounded.values[i]) - value);
      ASSERT_LE(error, std::max(std::abs(value) / 16, most * 0x1p-17)) << exponent;
      ASSERT_EQ(to_f32(to_bf16(rounded.values[i])), rounded.values[i]);
    }
  }
}

TEST(E4m3Vectors, RoundedOnceMoreAreTheSameCodes) {
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::vector<float> values = random_vector(random, i % 300 - 160);
    if (i % 7 == 0) values[3] = kInfinity;
    if (i % 11 == 0) values[5] = std::numeric_limits<float>::quiet_NaN();
    if (i % 13 == 0) values.assign(80, 0.0F);
    const Rounded once(values);
    const Rounded twice(once.values);
    ASSERT_EQ(twice.scale, once.scale) << i;
    for (std::size_t j = 0; j < 80; ++j) {
      if (std::isnan(once.values[j])) continue;
      ASSERT_EQ(twice.codes[j], once.codes[j]) << i;
    }
  }
}

TEST(E4m3Vectors, APowerOfTwoChangesTheScaleAlone) {
  std::mt19937 random(4);
  const std::vector<float> values = random_vector(random, 0);
  const Rounded one(values);
  for (const int exponent : {-90, -3, 7, 100}) {
    std::vector<float> other = values;
    for (float& value : other) value = std::ldexp(value, exponent);
    const Rounded scaled(other);
    EXPECT_EQ(scaled.codes, one.codes);
    EXPECT_EQ(scaled.scale, one.scale + exponent);
  }
}

TEST(E4m3Vectors, NeverSaturateBelowTheEndOfFloats) {
  for (const float most : {1.75F, 1.8125F, 1.8126F, 1.9375F, 1.99F, 2.0F}) {
    const Rounded rounded(std::vector<float>{most, 0.0F});
    EXPECT_LE(std::abs(rounded.values[0] - most), most / 16) << most;
  }
  const float end = std::numeric_limits<float>::max();
  EXPECT_TRUE(std::isfinite(Rounded(std::vector<float>{end}).values[0]));
  EXPECT_GT(Rounded(std::vector<float>{end}).values[0], end / 1.2F);
}

}  // namespace
}  // namespace dendrite
