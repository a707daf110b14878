// Orders in which GGUF files hold rows and columns.
#include "io/gguf_rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "dendrite/error.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

using Order = std::vector<std::int64_t>;

/// Two key heads, three value heads each.
GgufLayout layout_of_net(std::int64_t value_dim) {
  GgufLayout layout;
  layout.tiled = true;
  layout.key_heads = 2;
  layout.value_heads = 6;
  layout.key_dim = 1;
  layout.value_dim = value_dim;
  return layout;
}

Order order_of(const GgufLayout& layout, const std::string& name, std::int64_t rows) {
  Order out;
  for (const RowRun& run : row_runs(layout, name, rows, "x.gguf")) {
    for (std::int64_t i = 0; i < run.count; ++i) out.push_back(run.first + i * run.step);
  }
  return out;
}

TEST(GgufRows, OfValueHeadsLieInTurnsOfTheirKeyHeads) {
  const std::string net = "model.layers.3.linear_attn.";
  const GgufLayout one = layout_of_net(1);
  for (const char* name : {"in_proj_a.weight", "in_proj_b.weight", "dt_bias", "minus_decay"}) {
    EXPECT_EQ(order_of(one, net + name, 6), (Order{0, 2, 4, 1, 3, 5})) << name;
  }
  const GgufLayout two = layout_of_net(2);
  EXPECT_EQ(order_of(two, net + "in_proj_z.weight", 12),
            (Order{0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11}));
  // Queries and keys, two rows of each, stay in front.
  for (const char* name : {"in_proj_qkv.weight", "conv1d.weight"}) {
    EXPECT_EQ(order_of(two, net + name, 16),
              (Order{0, 1, 2, 3, 4, 5, 8, 9, 12, 13, 6, 7, 10, 11, 14, 15}))
        << name;
  }
  for (const char* name : {"norm.weight", "out_proj.weight"}) {
    EXPECT_TRUE(order_of(two, net + name, 12).empty()) << name;
  }
  EXPECT_TRUE(order_of(two, "model.layers.3.self_attn.q_proj.weight", 12).empty());
  EXPECT_THROW(order_of(two, net + "in_proj_z.weight", 10), Error);
}

TEST(GgufRows, OfHeadsLieInPairs) {
  GgufLayout layout;
  layout.paired = true;
  layout.head_dim = 4;
  EXPECT_EQ(order_of(layout, "model.layers.0.self_attn.k_proj.weight", 8),
            (Order{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_TRUE(order_of(layout, "model.layers.0.self_attn.v_proj.weight", 8).empty());
  EXPECT_THROW(order_of(layout, "model.layers.0.self_attn.k_proj.bias", 6), Error);
}

TEST(GgufRows, OfNormsHoldOneTooMany) {
  GgufLayout layout;
  layout.zero_centred = true;
  EXPECT_TRUE(layout.adds_one("model.norm.weight"));
  EXPECT_TRUE(layout.adds_one("model.layers.0.self_attn.q_norm.weight"));
  EXPECT_TRUE(layout.adds_one("model.layers.0.input_layernorm.weight"));
  EXPECT_FALSE(layout.adds_one("model.layers.0.linear_attn.norm.weight"));
  EXPECT_FALSE(layout.adds_one("model.layers.0.self_attn.q_proj.weight"));
}

/// A matrix of the values 0, 1, 2, ...
StoredMatrix counting(const Format& format, std::int64_t rows, std::int64_t cols,
                      const std::vector<std::byte>& bytes) {
  StoredMatrix matrix;
  matrix.format = &format;
  matrix.data = bytes.data();
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.stride = cols / format.block() * format.block_bytes();
  return matrix;
}

std::vector<float> row_of(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                          std::int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count));
  matrix.format->widen(matrix, row, begin, out);
  return out;
}

TEST(GgufRows, HaveColumnsOfValueHeadsInTurns) {
  const GgufLayout layout = layout_of_net(16);
  EXPECT_TRUE(layout.has_columns_in_turns("model.layers.0.linear_attn.out_proj.weight"));
  EXPECT_FALSE(layout.has_columns_in_turns("model.layers.0.self_attn.o_proj.weight"));
  constexpr std::int64_t kRows = 2, kCols = 96;
  std::vector<float> expected(kCols);
  for (std::int64_t column = 0; column < kCols; ++column) {
    const std::int64_t head = column / 16;
    expected[static_cast<std::size_t>(column)] =
        static_cast<float>((head % 3 * 2 + head / 3) * 16 + column % 16);
  }

  std::vector<float> values(kRows * kCols);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % kCols);
  std::vector<std::byte> plain(values.size() * 4);
  std::memcpy(plain.data(), values.data(), plain.size());
  const ColumnOrder copied(counting(f32_format(), kRows, kCols, plain), layout);
  EXPECT_EQ(copied.matrix().format, &f32_format());
  for (std::int64_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(row_of(copied.matrix(), row, 0, kCols), expected);
  }

  // Q8_0: an f16 of 1, and 32 codes.
  std::vector<std::byte> packed;
  for (std::size_t block = 0; block < values.size() / 32; ++block) {
    packed.insert(packed.end(), {std::byte{0x00}, std::byte{0x3C}});
    for (std::size_t i = block * 32; i < block * 32 + 32; ++i) {
      packed.push_back(static_cast<std::byte>(values[i]));
    }
  }
  const ColumnOrder ordered(counting(q8_0_format(), kRows, kCols, packed), layout);
  for (std::int64_t row = 0; row < kRows; ++row) {
    EXPECT_EQ(row_of(ordered.matrix(), row, 0, kCols), expected);
    const std::vector<float> middle = row_of(ordered.matrix(), row, 32, 32);
    EXPECT_EQ(middle, std::vector<float>(expected.begin() + 32, expected.begin() + 64));
  }
}

}  // namespace
}  // namespace dendrite
