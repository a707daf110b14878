// Products of block-scaled operands (MXFP8, NVFP4) on the host: numbers, the lanes' fragments and
// the layouts of a GPU, by the arithmetic that stands in for the instruction.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cuda/products/block_scaled_emulation.h"
#include "backend/cuda/products/block_scaled_tiles.h"
#include "core/dtype.h"
#include "held_matrix.h"
#include "quant/e4m3.h"
#include "quant/small_floats.h"
#include "test_support.h"

namespace dendrite::cuda {
namespace {

using test::Held;
using testing_support::Random;

constexpr BlockFormat kFormats[] = {BlockFormat::kMxfp8, BlockFormat::kNvfp4};

TEST(BlockScaledNumbers, AreThoseOfTheFormats) {
  constexpr float kE2M1[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    float power = 0;
    const StoredMatrix one{.format = &e8m0_scales(),
                           .data = reinterpret_cast<const std::byte*>(&byte),
                           .rows = 1,
                           .cols = 1,
                           .stride = 1};
    e8m0_scales().widen(one, 0, 0, {&power, 1});
    if (code == 255) {
      EXPECT_TRUE(std::isnan(e8m0_number(code)));
    } else {
      EXPECT_EQ(e8m0_number(code), power) << code;
    }
    if ((code & 127) == 127) {
      EXPECT_TRUE(std::isnan(e4m3_number(code)));
    } else {
      EXPECT_EQ(bits_of(e4m3_number(code)), bits_of(e4m3_value(byte))) << code;
      EXPECT_EQ(scale_number<BlockFormat::kNvfp4>(code), std::abs(e4m3_value(byte)));
    }
    const float e2m1 = kE2M1[code & 7];
    EXPECT_EQ(bits_of(e2m1_number(code & 15)), bits_of((code & 8) != 0 ? -e2m1 : e2m1));
  }
}

TEST(BlockScaledNumbers, AreRoundedToTheNearest) {
  for (std::uint32_t bits = 0; bits < 0x7fffffffu - 4099; bits += 4099) {  // of all sizes, and NaN
    const float value = std::bit_cast<float>(bits);
    ASSERT_EQ(e4m3_code_of_size(value), e4m3_code(value)) << value;
  }
  for (int i = -70; i <= 70; ++i) {  // sixteenths, on which all ties lie, and beside them
    const float exact = static_cast<float>(i) / 8;
    for (const float value :
         {exact, std::nextafter(exact, 100.0F), std::nextafter(exact, -100.0F)}) {
      std::uint32_t nearest = 0;
      for (std::uint32_t code = 1; code < 8; ++code) {
        const float best = std::abs(std::abs(value) - e2m1_number(nearest));
        const float gap = std::abs(std::abs(value) - e2m1_number(code));
        if (gap < best || (gap == best && code % 2 == 0)) nearest = code;
      }
      EXPECT_EQ(e2m1_code(value), nearest | (std::signbit(value) ? 8U : 0U)) << value;
    }
  }
}

TEST(BlockScaledNumbers, ARoundedRowIsNearWhatItWas) {
  Random random(1);
  for (const BlockFormat format : kFormats) {
    for (const float whole : {1.0F, 0.03F}) {
      std::vector<float> row = random.normal(256, 3);
      std::fill_n(row.begin(), 64, 0.0F);
      row[100] = 50;
      for (float& value : row) value = to_f32(to_bf16(value));
      const BlockScaledRows shape{nullptr, 1, 256, format};
      std::vector<std::byte> bytes(static_cast<std::size_t>(shape.size_bytes()));
      std::byte* const scales = bytes.data() + shape.code_bytes();
      const float used = format == BlockFormat::kMxfp8 ? 1 : whole;
      round_block_scaled(format, used, row, bytes.data(), scales);
      std::vector<float> back(row.size());
      widen_block_scaled(format, used, bytes.data(), scales, back);
      const std::size_t group = format == BlockFormat::kMxfp8 ? 32 : 16;
      for (std::size_t i = 0; i < row.size(); ++i) {
        float most = 0;
        for (std::size_t k = 0; k < group; ++k) {
          most = std::max(most, std::abs(row[i / group * group + k]));
        }
        EXPECT_LE(std::abs(back[i] - row[i]), most / (format == BlockFormat::kMxfp8 ? 14.0F : 5.0F))
            << i;
      }
    }
  }
}

TEST(BlockScaledNumbers, AnInputThatIsNotFiniteStaysSo) {
  for (const BlockFormat format : kFormats) {
    for (const float value : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      std::vector<float> row(128, 1.0F);
      row[17] = value;
      std::vector<std::byte> codes(128);
      std::vector<std::byte> scales(8);
      round_block_scaled(format, 1, row, codes.data(), scales.data());
      widen_block_scaled(format, 1, codes.data(), scales.data(), row);
      EXPECT_TRUE(std::isnan(row[17]));
      EXPECT_NEAR(row[64], 1.0F, 0.04F);
    }
  }
}

/// What the lanes of a warp hand in.
struct HostLanes {
  std::uint32_t a[32][4] = {};
  std::uint32_t b[32][2] = {};
  std::uint32_t a_scales[32] = {};
  std::uint32_t b_scales[32] = {};

  std::uint32_t left(int lane, int reg) const { return a[lane][reg]; }
  std::uint32_t right(int lane, int reg) const { return b[lane][reg]; }
  std::uint32_t left_scales(int lane) const { return a_scales[lane]; }
  std::uint32_t right_scales(int lane) const { return b_scales[lane]; }
};

/// An instruction's operands as matrices, put into fragments as the PTX ISA has them (m16n8k32 of
/// 8 bits, m16n8k64 of 4), by its formulas for element i of a lane. Scales that no lane is asked
/// for are NaN.
template <BlockFormat kFormat, int kByte>
void check_fragments(Random& random) {
  constexpr bool kE4M3 = kFormat == BlockFormat::kMxfp8;
  constexpr int kK = kE4M3 ? 32 : 64;
  constexpr int kBits = kE4M3 ? 8 : 4;
  constexpr int kGroups = kE4M3 ? 1 : 4;
  std::uint32_t a[16][kK];
  std::uint32_t b[8][kK];
  std::uint32_t a_scales[16][kGroups];
  std::uint32_t b_scales[8][kGroups];
  const auto code = [&] {
    const auto any = std::to_integer<std::uint32_t>(random.byte());
    return kE4M3 ? (any & 127) == 127 ? 1U : any : any & 15;
  };
  const auto scale = [&] {
    return static_cast<std::uint32_t>(kE4M3 ? random.in(120, 134) : random.in(1, 126));
  };
  for (auto& row : a)
    for (auto& one : row) one = code();
  for (auto& row : b)
    for (auto& one : row) one = code();
  for (auto& row : a_scales)
    for (auto& one : row) one = scale();
  for (auto& row : b_scales)
    for (auto& one : row) one = scale();

  HostLanes lanes;
  constexpr int kEach = 32 / kBits;
  for (int lane = 0; lane < 32; ++lane) {
    const int group_id = lane >> 2;
    const int thread_in_group = lane % 4;
    for (int i = 0; i < 4 * kEach; ++i) {
      const int part = i / kEach;
      const int row = part == 0 || part == 2 ? group_id : group_id + 8;
      const int col = thread_in_group * kEach + i % kEach + (part >= 2 ? kK / 2 : 0);
      lanes.a[lane][part] |= a[row][col] << i % kEach * kBits;
    }
    for (int i = 0; i < 2 * kEach; ++i) {
      const int k = thread_in_group * kEach + i % kEach + (i >= kEach ? kK / 2 : 0);
      lanes.b[lane][i / kEach] |= b[group_id][k] << i % kEach * kBits;
    }
    lanes.a_scales[lane] = lanes.b_scales[lane] = 0xffffffffu;
  }
  const auto put = [](std::uint32_t& word, const std::uint32_t(&scales)[kGroups]) {
    for (int i = 0; i < kGroups; ++i) {
      const int byte = kGroups == 1 ? kByte : i;
      word = (word & ~(255u << 8 * byte)) | scales[i] << 8 * byte;
    }
  };
  for (int row = 0; row < 16; ++row) put(lanes.a_scales[row % 8 * 4 + row / 8], a_scales[row]);
  for (int row = 0; row < 8; ++row) put(lanes.b_scales[row * 4], b_scales[row]);

  for (int lane = 0; lane < 32; ++lane) {
    float c[4] = {1, 2, 3, 4};
    emulate_multiply_add<kFormat, kByte>(c, lane, lanes);
    for (int i = 0; i < 4; ++i) {
      const int row = i < 2 ? lane >> 2 : (lane >> 2) + 8;
      const int col = lane % 4 * 2 + (i & 1);
      double expected = i + 1;
      double sizes = expected;
      for (int k = 0; k < kK; ++k) {
        const double x = code_number<kFormat>(a[row][k]);
        const double w = code_number<kFormat>(b[col][k]);
        const double product = x * w *
                               double{scale_number<kFormat>(a_scales[row][k / (kK / kGroups)])} *
                               double{scale_number<kFormat>(b_scales[col][k / (kK / kGroups)])};
        expected += product;
        sizes += std::abs(product);
      }
      ASSERT_NEAR(c[i], expected, sizes * 1e-6) << "lane " << lane << ", result " << i;
    }
  }
}

TEST(BlockScaledFragments, AreMultipliedAsTheInstructionDoes) {
  Random random(2);
  for (int i = 0; i < 20; ++i) {
    check_fragments<BlockFormat::kMxfp8, 0>(random);
    check_fragments<BlockFormat::kMxfp8, 1>(random);
    check_fragments<BlockFormat::kMxfp8, 2>(random);
    check_fragments<BlockFormat::kMxfp8, 3>(random);
    check_fragments<BlockFormat::kNvfp4, 0>(random);
  }
}

std::uint32_t word_of(const std::byte* from, std::int64_t number) {
  std::uint32_t word = 0;
  std::memcpy(&word, from + number * 4, sizeof word);
  return word;
}

/// A product [16, 8] of rows and a weight's eight from `first` on, as a warp of the kernel does it.
template <BlockFormat kFormat>
std::array<float, 128> warp_product(const BlockScaledRows& x, const std::uint32_t* weight,
                                    const BlockWeightLayout<kFormat>& layout, std::int64_t first) {
  using Traits = BlockTraits<kFormat>;
  std::array<float, 128> sums{};
  for (std::int64_t tile = 0; tile < layout.tiles(); ++tile) {
    float of_tile[32][4] = {};
    const auto step = [&]<int kStep>() {
      constexpr bool kFour = Traits::kStepScales == 4;
      HostLanes lanes;
      for (int lane = 0; lane < 32; ++lane) {
        const auto row_words = [&](int row) {
          return (row * layout.tiles() + tile) * Traits::kTileWords + kStep * 8;
        };
        for (int reg = 0; reg < 4; ++reg) {
          lanes.a[lane][reg] =
              word_of(x.data, row_words(left_row(lane, reg)) + left_word(lane, reg));
        }
        lanes.a_scales[lane] = word_of(
            x.scales(), (left_scale_row(lane) * layout.tiles() + tile) * Traits::kScaleWords +
                            (kFour ? kStep : 0));
        // Words 2 kStep and 2 kStep + 1 of those that a lane loads, four at a time.
        for (int reg = 0; reg < 2; ++reg) {
          const int number = 2 * kStep + reg;
          lanes.b[lane][reg] =
              weight[layout.words_at(first, tile) + (number / 4 * 32 + lane) * 4 + number % 4];
        }
        lanes.b_scales[lane] =
            weight[layout.scales_at(first + right_scale_row(lane), tile) + (kFour ? kStep : 0)];
      }
      for (int lane = 0; lane < 32; ++lane) {
        emulate_multiply_add<kFormat, kFour ? 0 : kStep>(of_tile[lane], lane, lanes);
      }
    };
    step.template operator()<0>();
    step.template operator()<1>();
    if constexpr (Traits::kSteps == 4) {
      step.template operator()<2>();
      step.template operator()<3>();
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int at = result_row(lane, i) * 8 + result_column(lane, i);
        sums[static_cast<std::size_t>(at)] += of_tile[lane][i];
      }
    }
  }
  return sums;
}

template <BlockFormat kFormat>
void check_products(const std::string& kind, float input_whole) {
  constexpr std::int64_t kRows = 40;
  constexpr std::int64_t kCols = 384;
  const Held held(kind, 32, kRows, kCols);
  StoredMatrix matrix = held.matrix();
  EXPECT_FALSE(block_format_of(matrix)) << "its inputs are not to be rounded";
  matrix.rounds_inputs = true;
  ASSERT_EQ(block_format_of(matrix), kFormat);
  const BlockWeightLayout<kFormat> layout{kRows, kCols};
  std::vector<std::uint32_t> weight(static_cast<std::size_t>(layout.size_bytes() / 4));
  ASSERT_TRUE(write_block_tiles(matrix, kFormat, 0, kRows, weight.data()));

  Random random(3);
  BlockScaledRows x{nullptr, 16, kCols, kFormat};
  std::vector<std::byte> bytes(static_cast<std::size_t>(x.size_bytes()));
  x.data = bytes.data();
  std::vector<float> meant(static_cast<std::size_t>(16 * kCols));
  for (std::int64_t row = 0; row < 16; ++row) {
    std::vector<float> values = random.normal(kCols, static_cast<float>(row + 1));
    for (float& value : values) value = to_f32(to_bf16(value));
    std::byte* const codes = x.data + row * x.code_bytes();
    std::byte* const scales = x.scales() + row * x.scale_bytes();
    round_block_scaled(kFormat, input_whole, values, codes, scales);
    widen_block_scaled(kFormat, input_whole, codes, scales,
                       std::span(meant).subspan(static_cast<std::size_t>(row * kCols), kCols));
  }
  const float factor = whole_scale_of(matrix) * input_whole;
  for (std::int64_t first = 0; first < kRows; first += 8) {
    const auto sums = warp_product<kFormat>(x, weight.data(), layout, first);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      double expected = 0;
      double sizes = 0;
      for (std::size_t k = 0; k < kCols; ++k) {
        const double product =
            double{meant[i / 8 * kCols + k]} *
            double{held.meant()[(static_cast<std::size_t>(first) + i % 8) * kCols + k]};
        expected += product;
        sizes += std::abs(product);
      }
      ASSERT_NEAR(sums[i] * factor, expected, sizes * 1e-6) << kind << ", row " << i / 8;
    }
  }
}

TEST(BlockScaledProducts, AreThoseOfTheMatricesThatFilesHold) {
  check_products<BlockFormat::kMxfp8>("mxfp8", 1);
  check_products<BlockFormat::kMxfp8>("mxfp8_typed", 1);
  check_products<BlockFormat::kNvfp4>("nvfp4", 1);
  check_products<BlockFormat::kNvfp4>("nvfp4_modelopt", 0.02F);
}

TEST(BlockScaledProducts, TakeNoMatrixOfOtherShapesOrWhoseInputsStay) {
  const Held narrow("nvfp4", 16, 16, 192);
  const Held short_one("mxfp8", 32, 12, 128);
  Held held("mxfp8", 32, 16, 128);
  for (StoredMatrix matrix : {narrow.matrix(), short_one.matrix()}) {
    matrix.rounds_inputs = true;
    EXPECT_FALSE(block_format_of(matrix));
  }
  StoredMatrix matrix = held.matrix();
  matrix.rounds_inputs = true;
  EXPECT_TRUE(block_format_of(matrix));
  matrix.as_plain = true;
  EXPECT_FALSE(block_format_of(matrix));
}

TEST(BlockScaledProducts, WhatIsNoNumberIsSeen) {
  Held e4m3("mxfp8", 32, 16, 128);
  Held e2m1("nvfp4", 16, 16, 128);
  std::vector<std::uint32_t> weight(4096);
  const auto writes = [&](const Held& held, BlockFormat format) {
    return write_block_tiles(held.matrix(), format, 0, 16, weight.data());
  };
  EXPECT_TRUE(writes(e4m3, BlockFormat::kMxfp8));
  EXPECT_TRUE(writes(e2m1, BlockFormat::kNvfp4));
  e2m1.bytes_of("_scale")[3] = std::byte{0xb8};
  EXPECT_FALSE(writes(e2m1, BlockFormat::kNvfp4)) << "a negative scale";
  e4m3.bytes_of("_scale")[3] = std::byte{255};
  EXPECT_FALSE(writes(e4m3, BlockFormat::kMxfp8)) << "a scale that is NaN";
}

/// Whose parts may say different things.
TEST(BlockScaledProducts, TheLargestScaleOfInputsIsTaken) {
  const Held divided("nvfp4", 16, 16, 128);
  const Held multiplied("nvfp4_modelopt", 16, 16, 128);
  const float numbers[] = {2, 4};
  const auto with = [](const Held& held, const float* number) {
    StoredMatrix matrix = held.matrix();
    matrix.input_whole = {&f32_format(), reinterpret_cast<const std::byte*>(number), 1, 1};
    return matrix;
  };
  const StoredMatrix by_division[] = {with(divided, numbers), with(divided, numbers + 1)};
  const StoredMatrix as_it_is[] = {with(multiplied, numbers), with(multiplied, numbers + 1)};
  EXPECT_EQ(whole_input_scale_of(by_division), 0.5F);
  EXPECT_EQ(whole_input_scale_of(as_it_is), 4.0F);
  EXPECT_EQ(whole_input_scale_of({&divided.matrix(), 1}), 1.0F);
}

}  // namespace
}  // namespace dendrite::cuda
