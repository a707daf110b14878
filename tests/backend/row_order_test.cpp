#include "backend/row_order.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "held_matrix.h"
#include "quant/formats.h"
#include "support/f32_matrix.h"

namespace dendrite {
namespace {

constexpr std::int64_t kRows = 192;
constexpr std::int64_t kCols = 64;
const std::vector<std::vector<std::int64_t>> kRuns = {{32, 32}, {8, 16, 24}, {192}, {1, 2, 1}};

/// Rows of one view after the other, as the whole has them.
void expect_rows(const StoredMatrix& whole, const std::vector<std::int64_t>& rows) {
  const RowOrder order(whole, rows);
  std::size_t row = 0;
  for (const StoredMatrix& view : order.views()) {
    EXPECT_EQ(view.format->number(), whole.format->number());
    EXPECT_EQ(view.format->groups(view), whole.format->groups(whole));
    for (std::int64_t i = 0; i < view.rows; ++i, ++row) {
      ASSERT_LT(row, rows.size());
      std::vector<float> got(kCols), expected(kCols);
      view.format->widen(view, i, 0, got);
      whole.format->widen(whole, rows[row], 0, expected);
      ASSERT_EQ(got, expected) << "row " << row;
      if (!whole.format->groups(whole)) continue;
      GroupedValues a, b;
      view.format->read_groups(view, i, 0, kCols, a);
      whole.format->read_groups(whole, rows[row], 0, kCols, b);
      ASSERT_TRUE(
          std::ranges::equal(std::span(a.codes).first(kCols), std::span(b.codes).first(kCols)));
      ASSERT_EQ(a.scales, b.scales);
    }
  }
  EXPECT_EQ(row, rows.size());
}

void expect_apart(const StoredMatrix& whole) {
  for (const std::vector<std::int64_t>& runs : kRuns) {
    for (std::size_t kind = 0; kind < runs.size(); ++kind) {
      expect_rows(whole, rows_of_kind(kRows, runs, kind));
    }
  }
  expect_rows(whole, rows_of_pairs(kRows, 24, 0, 16));
}

TEST(RowOrder, KnowsTurnsAndPairs) {
  using Rows = std::vector<std::int64_t>;
  const std::vector<std::int64_t> runs{2, 1};
  EXPECT_EQ(rows_of_kind(6, runs, 0), (Rows{0, 1, 3, 4}));
  EXPECT_EQ(rows_of_kind(6, runs, 1), (Rows{2, 5}));
  EXPECT_EQ(rows_of_pairs(10, 5, 0, 4), (Rows{0, 2, 1, 3, 4, 5, 7, 6, 8, 9}));
  EXPECT_EQ(rows_of_pairs(5, 5, 1, 4), (Rows{0, 1, 3, 2, 4}));
}

TEST(RowOrder, IsTheSameInAllFormats) {
  for (const std::string& kind : test::packed_kinds()) {
    SCOPED_TRACE(kind);
    expect_apart(test::Held(kind, 32, kRows, kCols).matrix());
  }
}

TEST(RowOrder, LeavesPlainNumbersWhereTheyAre) {
  std::vector<float> values(kRows * kCols);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const StoredMatrix whole = test::f32_matrix(values, kRows, kCols);
  expect_apart(whole);
  const RowOrder order(whole, rows_of_kind(kRows, kRuns.front(), 1));
  EXPECT_EQ(order.views().size(), 3u);
  EXPECT_EQ(order.views().front().format, &f32_format());
  EXPECT_EQ(order.views().front().rows, 32);
}

}  // namespace
}  // namespace dendrite
