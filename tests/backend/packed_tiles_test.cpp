// How packed weights lie in the memory of a GPU, and what kernels make of it there, on the host.
#include <gtest/gtest.h>

#include <bit>

#include "backend/cuda/products/packed_layouts.h"
#include "backend/cuda/products/packed_weight.h"
#include "held_matrix.h"
#include "quant/rounded.h"
#include "test_support.h"

namespace dendrite::cuda {
namespace {

using test::Held;
using testing_support::all_blocks;
using testing_support::FileMatrix;
using testing_support::Random;

std::uint32_t word_at(const std::byte* from) {
  std::uint32_t word = 0;
  std::memcpy(&word, from, sizeof word);
  return word;
}

/// A tile by packed_layout.h's words, and the arithmetic of packed_decode.cuh.
class Tile {
 public:
  Tile(const std::byte* data, const PackedAs& packed) : data_(data), packed_(packed) {}

  BF16 value(int row, int column) const {
    const PackedLayout& layout = packed_.layout;
    const float number = code(row, column);
    const float scale = number_of(layout.scales_at(), layout.scale_at(), row, column);
    if (!layout.minimums) return to_bf16(scale * number);
    const float minimum = number_of(layout.minimums_at(), layout.minimum_at(), row, column);
    if (raised()) return to_bf16(std::fma(scale, 16 + number, minimum));  // rounded once
    return to_bf16(layout.points ? scale * (number - minimum) : scale * number - minimum);
  }

 private:
  float code(int row, int column) const {
    const int step = column / 16;
    const int lane = row * 4 + column % 8 / 2;
    const int second = column % 16 / 8;
    if (!packed_.layout.four_bits()) {
      const std::byte byte =
          data_[step / 4 * 512 + lane * 16 + step % 4 * 4 + second * 2 + column % 2];
      const auto bits = std::to_integer<std::uint8_t>(byte);
      return packed_.layout.codes == PackedCodes::kE4M3
                 ? e4m3_value(bits)
                 : static_cast<float>(static_cast<std::int8_t>(bits));
    }
    const std::uint32_t word = word_at(data_ + step / 8 * 512 + lane * 16 + step / 2 % 4 * 4);
    const int at = step % 2 * 8 + second * 4 + column % 2 * 16;
    const std::uint32_t bits = std::rotr(word, raised() ? at + 3 : at) & 15;
    if (raised() || packed_.layout.codes == PackedCodes::kNibbles) {
      return static_cast<float>(static_cast<int>(bits) + packed_.lowest);
    }
    // As f16 it is 2^14 times less, and twice its value is meant.
    const auto half = static_cast<F16>((bits & 8) << 12 | (bits & 7) << 9);
    return to_f32(half) * 32768;
  }

  float number_of(int at, int of_row, int row, int column) const {
    const PackedLayout& layout = packed_.layout;
    const std::byte* const from =
        data_ + at + row * layout.row_bytes() + column / layout.group * layout.scale_size();
    if (layout.scales == GroupScales::kF32) return std::bit_cast<float>(word_at(from));
    if (layout.scales == GroupScales::kF16) {
      return stored_value(from, raised() ? DType::kBF16 : DType::kF16, 0);
    }
    if (layout.scales == GroupScales::kPowers) {
      return std::bit_cast<float>(
          std::max(std::to_integer<std::uint32_t>(*from) << 23, 0x00400000U));
    }
    return stored_value(data_ + of_row, DType::kF16, row) *
           static_cast<float>(static_cast<std::int8_t>(*from));
  }

  bool raised() const { return packed_.layout.codes == PackedCodes::kRaised; }

  const std::byte* data_;
  const PackedAs& packed_;
};

/// Every value, as it is packed, is what the format says, rounded once.
void expect_same(const StoredMatrix& matrix, const PackedAs& packed, const std::string& what) {
  const std::int64_t tiles = tiles_of(matrix.cols);
  const std::int64_t down = tile_rows_of(matrix.rows);
  const std::int64_t bytes = packed.layout.tile_bytes();
  std::vector<std::byte> memory(static_cast<std::size_t>(down * tiles * bytes));
  ASSERT_TRUE(write_tiles({&matrix, 1}, packed, 0, down, memory.data())) << what;
  std::vector<float> meant(static_cast<std::size_t>(matrix.cols));
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    matrix.format->widen(matrix, row, 0, meant);
    for (std::int64_t column = 0; column < matrix.cols; ++column) {
      const Tile tile(memory.data() + (row / 8 * tiles + column / 256) * bytes, packed);
      const BF16 got = tile.value(static_cast<int>(row % 8), static_cast<int>(column % 256));
      ASSERT_EQ(to_f32(got), to_f32(to_bf16(meant[static_cast<std::size_t>(column)])))
          << what << " row " << row << " column " << column;
    }
  }
}

struct Expected {
  const char* kind;
  std::int64_t group;
  double bits;  // a weight takes
};

TEST(PackedTiles, HoldFormatsOfSafetensorsInFewBits) {
  constexpr std::int64_t kRows = 48;
  constexpr std::int64_t kCols = 512;
  for (const Expected& one : {Expected{"awq", 32, 5},  {"awq", 64, 5},
                              {"awq", 128, 4.5},       {"gptq", 32, 5},
                              {"gptq", 64, 5},         {"gptq", 128, 4.5},
                              {"int4", 32, 4.5},       {"int4", 64, 4.5},
                              {"int4", 128, 4.5},      {"int4_zeros", 32, 5},
                              {"int4_zeros", 64, 5},   {"int4_zeros", 128, 4.5},
                              {"mxfp4", 0, 4.5},       {"mxfp4_modelopt", 0, 4.5},
                              {"nvfp4", 0, 6},         {"nvfp4_modelopt", 0, 6},
                              {"int8", 0, 8.25},       {"fp8_channel", 0, 8.25},
                              {"fp8_block", 0, 8.25},  {"mxfp8", 0, 8.25},
                              {"mxfp8_typed", 0, 8.25}}) {
    const std::string what = one.kind + std::string(" of ") + std::to_string(one.group);
    const Held held(one.kind, one.group, kRows, kCols);
    const auto packed = packed_as({&held.matrix(), 1});
    ASSERT_TRUE(packed) << what;
    EXPECT_EQ(packed->layout.tile_bytes() * 8 / 2048.0, one.bits) << what;
    EXPECT_EQ(packed->layout.tile_bytes() % 16, 0) << what;
    expect_same(held.matrix(), *packed, what);
  }
}

TEST(PackedTiles, HoldScalesOfMxfp8ThatAreFarOut) {
  Held held("mxfp8", 0, 16, 256);
  held.bytes_of("_scale")[0] = std::byte{0};
  held.bytes_of("_scale")[1] = std::byte{1};
  held.bytes_of("_scale")[2] = std::byte{246};
  const auto packed = packed_as({&held.matrix(), 1});
  ASSERT_TRUE(packed);
  expect_same(held.matrix(), *packed, "scales far out");
  for (const int exponent : {247, 255}) {  // beyond bf16; NaN
    held.bytes_of("_scale")[3] = std::byte(exponent);
    std::vector<std::byte> memory(static_cast<std::size_t>(2 * packed->layout.tile_bytes()));
    EXPECT_FALSE(write_tiles({&held.matrix(), 1}, *packed, 0, 2, memory.data())) << exponent;
  }
}

TEST(PackedTiles, HoldFormatsOfGguf) {
  for (const auto& blocks : all_blocks()) {
    Random random(5);
    const FileMatrix matrix(24, 1024, *blocks.format, blocks.halves, random);
    const auto packed = packed_as({&matrix.host, 1});
    const std::string what(blocks.format->name());
    ASSERT_EQ(packed.has_value(), blocks.format != &q5_1_format()) << what;
    if (packed) expect_same(matrix.host, *packed, what);
  }
}

TEST(PackedTiles, HoldWhatIsRounded) {
  Random random(6);
  const FileMatrix plain(40, 704, DType::kF32, random.normal(40 * 704));
  for (const WeightRounding rounding : {WeightRounding::kInt8, WeightRounding::kInt4}) {
    StoredMatrix matrix = plain.host;
    matrix.format = &rounded_format(DType::kF32, rounding);
    const auto packed = packed_as({&matrix, 1});
    ASSERT_TRUE(packed);
    expect_same(matrix, *packed, name_of(rounding));
  }
}

TEST(PackedTiles, WhatNoLayoutHoldsIsWidened) {
  const Held order("gptq_order", 32, 48, 512);
  EXPECT_FALSE(packed_as({&order.matrix(), 1}));
  const Held narrow("awq", 32, 48, 96);
  EXPECT_FALSE(packed_as({&narrow.matrix(), 1}));
  Held tiny("mxfp4", 0, 48, 512);  // a power of two that f16 does not have
  tiny.bytes_of("_scale")[5] = std::byte{80};
  EXPECT_FALSE(packed_as({&tiny.matrix(), 1}));
  Held large("nvfp4_modelopt", 0, 48, 512);
  const float whole = 0x1p120F;
  std::memcpy(large.bytes_of("_scale_2").data(), &whole, sizeof whole);
  EXPECT_FALSE(packed_as({&large.matrix(), 1}));
}

}  // namespace
}  // namespace dendrite::cuda
