#include "quant/formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/backend.h"
#include "dendrite/error.h"
#include "tensors.h"

namespace dendrite {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::uint32_t kNan = 0x7fc00000;

/// A stored pattern, and the bits of the f32 that it is.
struct Pattern {
  std::uint32_t stored;
  std::uint32_t value;
};

StoredMatrix one_row(const Format& format, const std::vector<std::byte>& bytes,
                     std::int64_t values) {
  return {.format = &format,
          .data = bytes.data(),
          .rows = 1,
          .cols = values,
          .stride = std::ssize(bytes)};
}

/// Both ways, but for NaN, which keeps no payload.
void expect_patterns(const PlainFormat& format, const std::vector<Pattern>& patterns) {
  const auto size = static_cast<std::size_t>(format.block_bytes());
  std::vector<std::byte> bytes(patterns.size() * size);
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    std::memcpy(&bytes[i * size], &patterns[i].stored, size);  // little-endian
  }
  std::vector<float> values(patterns.size());
  const auto count = static_cast<std::int64_t>(patterns.size());
  format.widen(one_row(format, bytes, count), 0, 0, values);
  std::vector<std::byte> back(bytes.size());
  format.narrow(values, back.data());
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const auto expected = std::bit_cast<float>(patterns[i].value);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(values[i])) << std::hex << patterns[i].stored;
      std::vector<float> again(1);
      const std::vector<std::byte> kept(back.begin() + static_cast<std::ptrdiff_t>(i * size),
                                        back.begin() + static_cast<std::ptrdiff_t>((i + 1) * size));
      format.widen(one_row(format, kept, 1), 0, 0, again);
      EXPECT_TRUE(std::isnan(again[0])) << std::hex << patterns[i].stored;
      continue;
    }
    EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), patterns[i].value)
        << std::hex << patterns[i].stored;
    EXPECT_EQ(std::memcmp(&back[i * size], &bytes[i * size], size), 0)
        << std::hex << patterns[i].stored;
  }
}

/// What a value is stored as.
std::uint32_t narrowed(const PlainFormat& format, float value) {
  std::uint32_t bits = 0;
  format.narrow({&value, 1}, reinterpret_cast<std::byte*>(&bits));
  return bits;
}

TEST(F32Format, IsTheNumberItself) {
  expect_patterns(f32_format(), {{0x00000000, 0x00000000},
                                 {0x80000000, 0x80000000},
                                 {0x3f800000, 0x3f800000},
                                 {0x00000001, 0x00000001},  // the smallest subnormal
                                 {0x7f7fffff, 0x7f7fffff},
                                 {0x7f800000, 0x7f800000},
                                 {0xff800000, 0xff800000},
                                 {kNan, kNan}});
}

TEST(F16Format, WidensEveryKindOfNumber) {
  expect_patterns(f16_format(), {{0x0000, 0x00000000},
                                 {0x8000, 0x80000000},
                                 {0x3c00, 0x3f800000},  // 1
                                 {0xc000, 0xc0000000},  // -2
                                 {0x7bff, 0x477fe000},  // 65504
                                 {0x0400, 0x38800000},  // 2^-14, the smallest normal one
                                 {0x03ff, 0x387fc000},  // the largest subnormal
                                 {0x0001, 0x33800000},  // 2^-24
                                 {0x8001, 0xb3800000},
                                 {0x7c00, 0x7f800000},
                                 {0xfc00, 0xff800000},
                                 {0x7e00, kNan},
                                 {0x7c01, kNan}});
}

TEST(F16Format, RoundsToNearestEven) {
  EXPECT_EQ(narrowed(f16_format(), 1.0f + 0x1p-11f), 0x3c00u);             // a tie, to even
  EXPECT_EQ(narrowed(f16_format(), 1.0f + 3 * 0x1p-11f), 0x3c02u);         // a tie, to even
  EXPECT_EQ(narrowed(f16_format(), 1.0f + 0x1p-11f + 0x1p-20f), 0x3c01u);  // above it
  EXPECT_EQ(narrowed(f16_format(), 65519.0f), 0x7bffu);
  EXPECT_EQ(narrowed(f16_format(), 65520.0f), 0x7c00u);  // beyond the largest one
  EXPECT_EQ(narrowed(f16_format(), 0x1p-25f), 0x0000u);  // a tie of subnormals
  EXPECT_EQ(narrowed(f16_format(), 3 * 0x1p-25f), 0x0002u);
  EXPECT_EQ(narrowed(f16_format(), -0x1p-30f), 0x8000u);
}

TEST(F16Format, EveryPatternComesBack) {
  std::vector<Pattern> all;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    all.push_back({bits, std::bit_cast<std::uint32_t>(to_f32(static_cast<F16>(bits)))});
  }
  expect_patterns(f16_format(), all);
}

TEST(BF16Format, IsTheUpperHalfOfAnF32) {
  std::vector<Pattern> all;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) all.push_back({bits, bits << 16});
  expect_patterns(bf16_format(), all);
}

TEST(BF16Format, RoundsToNearestEven) {
  EXPECT_EQ(narrowed(bf16_format(), 1.0f + 0x1p-8f), 0x3f80u);
  EXPECT_EQ(narrowed(bf16_format(), 1.0f + 3 * 0x1p-8f), 0x3f82u);
  EXPECT_EQ(narrowed(bf16_format(), std::bit_cast<float>(0x00008000u)), 0x0000u);  // subnormal
  EXPECT_EQ(narrowed(bf16_format(), std::bit_cast<float>(0x00008001u)), 0x0001u);
  EXPECT_EQ(narrowed(bf16_format(), std::numeric_limits<float>::max()), 0x7f80u);
  EXPECT_EQ(narrowed(bf16_format(), -kInfinity), 0xff80u);
  EXPECT_EQ(narrowed(bf16_format(), std::bit_cast<float>(0x7f800001u)), 0x7fc0u);  // stays NaN
}

TEST(PlainFormats, ReadAPieceOfARowOfAWiderMatrix) {
  for (const Format* format : formats()) {
    if (!format->number()) continue;
    const PlainFormat& plain = plain_format(*format->number());
    EXPECT_EQ(&plain, format);
    std::vector<float> numbers(24);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
    const auto size = static_cast<std::size_t>(plain.block_bytes());
    std::vector<std::byte> bytes(numbers.size() * size + 1);
    plain.narrow(numbers, bytes.data() + 1);  // unaligned
    // [3, 5] of rows that are 8 apart.
    const StoredMatrix part{.format = format,
                            .data = bytes.data() + 1,
                            .rows = 3,
                            .cols = 5,
                            .stride = static_cast<std::int64_t>(8 * size)};
    std::vector<float> out(3);
    part.format->widen(part, 2, 1, out);
    EXPECT_EQ(out, (std::vector<float>{17, 18, 19})) << format->name();
  }
}

/// A format as later ones are: blocks of 32 bytes with a scale each, in a tensor beside.
class BlockFormat final : public Format {
 public:
  BlockFormat() : Format("i8_blocks", "I8", 32, 32) {}
  std::optional<StoredMatrix> find(const TensorSource& source, std::string_view name,
                                   std::int64_t rows, std::int64_t cols) const override {
    auto matrix = Format::find(source, name, rows, cols);
    if (matrix) matrix->scales = companion_of(source, *matrix, "_scale", rows, cols / 32);
    return matrix;
  }
  void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t k = begin + static_cast<std::int64_t>(i);
      float scale = 0;
      matrix.scales.widen(row, k / 32, {&scale, 1});
      out[i] = scale * static_cast<float>(static_cast<std::int8_t>(matrix.row(row)[k]));
    }
  }
};

class FindMatrix : public testing::Test {
 protected:
  std::optional<StoredMatrix> find(std::int64_t rows, std::int64_t cols) const {
    const Format* const known[] = {&f32_format(), &f16_format(), &bf16_format(), &blocks_};
    return find_matrix(tensors_, "w", rows, cols, known);
  }
  std::string error(std::int64_t rows, std::int64_t cols) const {
    try {
      find(rows, cols);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  const BlockFormat blocks_;
  const std::vector<std::byte> bytes_ = std::vector<std::byte>(256, std::byte{3});
  test::Tensors tensors_;
};

TEST_F(FindMatrix, ByTheTypeOfItsTensor) {
  EXPECT_FALSE(find(4, 16));
  tensors_.add("w", "F32", {4, 16}, bytes_);
  EXPECT_EQ(find(4, 16)->format, &f32_format());
  tensors_.add("w", "BF16", {4, 32}, bytes_);
  const auto found = find(4, 32);
  EXPECT_EQ(found->format, &bf16_format());
  EXPECT_EQ(found->data, bytes_.data());
  EXPECT_EQ(found->stride, 64);
  EXPECT_EQ(found->name, "w");
  EXPECT_EQ(found->file, "x.file");
  tensors_.add("w", "I64", {4, 8}, bytes_);
  EXPECT_FALSE(find(4, 8));
}

TEST_F(FindMatrix, NamesWhatIsBroken) {
  tensors_.add("w", "BF16", {4, 32}, bytes_);
  EXPECT_EQ(error(4, 16),
            "x.file: tensor \"w\" has shape [4, 32], expected [4, 16] (as config.json says)");
  tensors_.add("w", "F32", {4, 32}, bytes_);
  EXPECT_EQ(error(4, 32), "x.file: tensor \"w\" has 256 bytes, expected 512 of shape [4, 32]");
  tensors_.add("w", "I8", {16, 16}, bytes_);
  EXPECT_EQ(error(16, 16),
            "x.file: tensor \"w\" has rows of 16 values, expected a multiple of 32, the block of "
            "i8_blocks");
}

TEST_F(FindMatrix, BringsItsCompanions) {
  tensors_.add("w", "I8", {2, 128}, bytes_);
  EXPECT_EQ(error(2, 128),
            "x.file: holds no tensor \"w_scale\", which \"w\" as i8_blocks does not go without");
  std::vector<float> numbers = {1, 2, 3, 4, 0.5f, 0.25f, -1, 8};
  std::vector<std::byte> scales(16);
  f16_format().narrow(numbers, scales.data());
  tensors_.add("w_scale", "F16", {4, 2}, scales);
  EXPECT_EQ(error(2, 128),
            "x.file: tensor \"w_scale\" has shape [4, 2], expected [2, 4] (of \"w\" [2, 128])");
  tensors_.add("w_scale", "I64", {2, 4}, scales);
  EXPECT_EQ(error(2, 128),
            "x.file: tensor \"w_scale\" is stored as I64, expected F32, F16 or BF16");
  tensors_.add("w_scale", "F16", {2, 4}, scales);
  const auto found = find(2, 128);
  ASSERT_TRUE(found);
  std::vector<float> values(64);
  found->format->widen(*found, 1, 32, values);
  EXPECT_EQ(values.front(), 0.75f);
  EXPECT_EQ(values.back(), -3.0f);
}

TEST_F(FindMatrix, WhatNoKernelTakesIsWidenedWhenItIsPacked) {
  constexpr std::int64_t kRows = 70;
  constexpr std::int64_t kCols = 544;  // more than kMostBlock, and no multiple of it
  std::vector<std::byte> data(kRows * kCols);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 37 + i / 91);
  std::vector<float> numbers(kRows * kCols / 32);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = 0.01f * static_cast<float>(i % 19 + 1);
  }
  std::vector<std::byte> scales(numbers.size() * 4);
  f32_format().narrow(numbers, scales.data());
  tensors_.add("w", "I8", {kRows, kCols}, data);
  tensors_.add("w_scale", "F32", {kRows, kCols / 32}, scales);
  const auto matrix = find(kRows, kCols);
  ASSERT_TRUE(matrix);
  for (const Numerics numerics : {Numerics::kF32, Numerics::kF16, Numerics::kBF16}) {
    const auto backend = make_cpu_backend(numerics, 2);
    const auto weight = backend->pack({&*matrix, 1});
    const PlainFormat& kept = plain_format(numerics.weights.value_or(DType::kF32));
    const auto row = backend->make_buffer(kCols);
    for (const std::int32_t token : {0, 15, 16, 69}) {
      backend->embed({row->data(), 1, kCols, kCols}, {&token, 1}, *weight);
      std::vector<float> got(kCols);
      backend->download(got, row->data());
      std::vector<float> meant(kCols);
      blocks_.widen(*matrix, token, 0, meant);
      std::vector<std::byte> rounded(static_cast<std::size_t>(kCols * kept.block_bytes()));
      kept.narrow(meant, rounded.data());
      kept.widen(one_row(kept, rounded, kCols), 0, 0, meant);
      EXPECT_EQ(got, meant) << name_of(numerics) << ", row " << token;
    }
  }
}

TEST(NumbersOf, GivesPlainOnesAlone) {
  std::vector<std::byte> bytes(4);
  const std::vector<float> numbers = {1.5f, -2.0f};
  bf16_format().narrow(numbers, bytes.data());
  EXPECT_EQ(numbers_of({"n", "BF16", {2}, bytes.data(), 4, "x.file"}), numbers);
  try {
    numbers_of({"n", "F8_E4M3", {4}, bytes.data(), 4, "x.file"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "x.file: tensor \"n\" is stored as F8_E4M3, expected F32, F16 or BF16");
  }
}

}  // namespace
}  // namespace dendrite
