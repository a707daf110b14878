#include "backend/column_range.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "dendrite/error.h"
#include "held_matrix.h"
#include "support/f32_matrix.h"

namespace dendrite {
namespace {

constexpr std::int64_t kRows = 32;
constexpr std::int64_t kCols = 768;

std::string why_not(const StoredMatrix& whole, std::int64_t count) {
  try {
    ColumnRange(whole, 0, count);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// Columns of a view, as the whole has them.
void expect_columns(const StoredMatrix& whole, std::int64_t first, std::int64_t count) {
  const ColumnRange range(whole, first, count);
  const StoredMatrix& view = range.view();
  EXPECT_EQ(view.rows, whole.rows);
  EXPECT_EQ(view.cols, count);
  EXPECT_EQ(view.format->number(), whole.format->number());
  EXPECT_EQ(view.format->groups(view), whole.format->groups(whole));
  for (std::int64_t row = 0; row < whole.rows; ++row) {
    std::vector<float> got(static_cast<std::size_t>(count)), all(kCols);
    view.format->widen(view, row, 0, got);
    whole.format->widen(whole, row, 0, all);
    ASSERT_TRUE(std::ranges::equal(got, std::span(all).subspan(static_cast<std::size_t>(first),
                                                               static_cast<std::size_t>(count))))
        << "row " << row;
    if (!whole.format->groups(whole)) continue;
    GroupedValues a, b;
    view.format->read_groups(view, row, 0, 256, a);
    whole.format->read_groups(whole, row, first, 256, b);
    ASSERT_EQ(a.codes, b.codes) << "row " << row;
    ASSERT_EQ(a.scales, b.scales) << "row " << row;
  }
}

TEST(ColumnRange, IsTheSameInAllFormats) {
  for (const std::string& kind : test::packed_kinds()) {
    SCOPED_TRACE(kind);
    const test::Held held(kind, 32, kRows, kCols);
    const StoredMatrix& whole = held.matrix();
    if (whole.groups != nullptr) {
      EXPECT_NE(why_not(whole, 256).find("an order of their own"), std::string::npos);
      continue;
    }
    expect_columns(whole, 0, 256);
    expect_columns(whole, 256, 512);
    EXPECT_NE(
        why_not(whole, 384).find("is cut into 384 columns from 0 on; expected multiples of 256"),
        std::string::npos);
  }
}

TEST(ColumnRange, CutsPlainNumbersAnywhere) {
  std::vector<float> values(kRows * kCols);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const StoredMatrix whole = test::f32_matrix(values, kRows, kCols);
  expect_columns(whole, 0, 36);
  expect_columns(whole, 36, kCols - 36);
}

}  // namespace
}  // namespace dendrite
