// What is packed is what the formats' readers mean, and as near as it can be.
#include "quant/packed_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "quant/formats.h"
#include "tensors.h"

namespace dendrite {
namespace {

constexpr std::int64_t kRows = 6;
constexpr std::int64_t kCols = 256;

std::vector<float> normal() {
  std::mt19937 engine(5);
  std::normal_distribution<float> distribution(0.0F, 0.02F);
  std::vector<float> values(static_cast<std::size_t>(kRows * kCols));
  for (float& value : values) value = distribution(engine);
  return values;
}

/// A matrix [kRows, kCols] that was packed: what was told of it, and its tensors.
struct Packed {
  std::vector<float> meant;
  std::vector<float> scales;
  std::vector<std::byte> codes;
  std::vector<std::byte> scale_bytes;
  test::Tensors tensors;
};

void pack_rows(const RowPacking& packing, const std::vector<float>& values,
               const std::vector<float>& importance, Packed& out) {
  const auto row_scales = static_cast<std::size_t>(packing.scales(kCols));
  out.meant = values;
  out.scales.resize(kRows * row_scales);
  out.codes.resize(static_cast<std::size_t>(kRows * packing.row_bytes(kCols)));
  for (std::size_t r = 0; r < kRows; ++r) {
    pack_row(packing, std::span(out.meant).subspan(r * kCols, kCols), importance,
             out.codes.data() + static_cast<std::int64_t>(r) * packing.row_bytes(kCols),
             std::span(out.scales).subspan(r * row_scales, row_scales));
  }
  const bool four = packing.kind == PackedKind::kInt4;
  const PlainFormat& numbers = four ? f16_format() : f32_format();
  out.scale_bytes.resize(out.scales.size() * static_cast<std::size_t>(numbers.block_bytes()));
  numbers.narrow(out.scales, out.scale_bytes.data());
  if (four) {
    out.tensors.add("a.weight_packed", "I32", {kRows, kCols / 8}, out.codes);
  } else {
    out.tensors.add("a.weight", packing.kind == PackedKind::kFp8 ? "F8_E4M3" : "I8", {kRows, kCols},
                    out.codes);
  }
  out.tensors.add("a.weight_scale", numbers.stored_type(), {kRows, packing.scales(kCols)},
                  out.scale_bytes);
}

class PackedRows : public testing::TestWithParam<RowPacking> {
 protected:
  Packed pack(const std::vector<float>& values) {
    Packed out;
    pack_rows(GetParam(), values, std::vector<float>(kCols, 1.0F), out);
    return out;
  }
};

std::string name_of(const testing::TestParamInfo<RowPacking>& one) {
  static const std::vector<std::string> names{"fp8", "int8", "int4_128", "int4_32"};
  return names[one.index];
}

INSTANTIATE_TEST_SUITE_P(Kinds, PackedRows,
                         testing::Values(RowPacking{PackedKind::kFp8},
                                         RowPacking{PackedKind::kInt8},
                                         RowPacking{PackedKind::kInt4, 128},
                                         RowPacking{PackedKind::kInt4, 32}),
                         name_of);

TEST_P(PackedRows, AreWhatReadersMean) {
  const Packed packed = pack(normal());
  const auto matrix = find_matrix(packed.tensors, "a.weight", kRows, kCols);
  ASSERT_TRUE(matrix);
  std::vector<float> row(kCols);
  for (std::int64_t r = 0; r < kRows; ++r) {
    matrix->format->widen(*matrix, r, 0, row);
    const auto meant = std::span(packed.meant).subspan(static_cast<std::size_t>(r * kCols), kCols);
    EXPECT_TRUE(std::ranges::equal(row, meant)) << "row " << r;
  }
}

TEST_P(PackedRows, AreWithinHalfAStep) {
  const std::vector<float> values = normal();
  const Packed packed = pack(values);
  const std::size_t group = values.size() / packed.scales.size();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float scale = packed.scales[i / group];
    const float off = std::abs(packed.meant[i] - values[i]);
    const float steps = std::abs(values[i]) / scale;
    switch (GetParam().kind) {
      case PackedKind::kFp8:  // 3 bits of mantissa, subnormal below 2^-6
        EXPECT_LE(off, std::max(std::abs(values[i]) / 16, scale * 0x1p-10F) * 1.01F);
        break;
      case PackedKind::kInt8:  // a scale that was rounded can make the largest 127.25
        EXPECT_LE(off, scale * 0.501F);
        break;
      case PackedKind::kInt4:  // or the largest were cut off
        EXPECT_LE(off, scale * (steps < 7.4F ? 0.501F : 3.1F));
        EXPECT_LE(steps, 10.1F);
        break;
    }
  }
}

TEST_P(PackedRows, HaveScalesThatBf16AndF16Keep) {
  const Packed packed = pack(normal());
  for (const float scale : packed.scales) {
    EXPECT_GT(scale, 0);
    EXPECT_EQ(to_f32(to_bf16(scale)), scale);
    EXPECT_EQ(to_f32(to_f16(scale)), scale);
  }
}

TEST_P(PackedRows, OfZerosAndTinyValuesStayFinite) {
  std::vector<float> values = normal();
  std::fill_n(values.begin(), kCols, 0.0F);
  std::fill_n(values.begin() + kCols, kCols, 1e-12F);
  const Packed packed = pack(values);
  for (std::size_t i = 0; i < 2 * kCols; ++i) {
    EXPECT_NEAR(packed.meant[i], values[i], 1e-7F);
  }
}

TEST(PackedRowsInt4, RoundImportantColumnsLess) {
  std::vector<float> importance(kCols, 1.0F);
  for (std::size_t k = 0; k < kCols; k += 16) importance[k] = 1000;
  const std::vector<float> values = normal();
  Packed alike, weighted;
  pack_rows({PackedKind::kInt4, 32}, values, std::vector<float>(kCols, 1.0F), alike);
  pack_rows({PackedKind::kInt4, 32}, values, importance, weighted);
  double before = 0;
  double after = 0;
  for (std::size_t i = 0; i < values.size(); i += 16) {
    before += std::pow(alike.meant[i] - values[i], 2);
    after += std::pow(weighted.meant[i] - values[i], 2);
  }
  EXPECT_LT(after, 0.7 * before);
}

}  // namespace
}  // namespace dendrite
