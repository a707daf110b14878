#include "backend/row_turns.h"

#include <gtest/gtest.h>

#include <numeric>

#include "../quant/tensors.h"
#include "quant/formats.h"
#include "support/packed_matrix.h"

namespace dendrite {
namespace {

constexpr std::int64_t kRows = 192;
constexpr std::int64_t kCols = 64;
const std::vector<std::vector<std::int64_t>> kRuns = {{32, 32}, {8, 16, 24}, {192}, {1, 2, 1}};

/// Rows of one view after the other, as the whole has them.
void expect_rows(const StoredMatrix& whole, const std::vector<std::int64_t>& runs, std::size_t kind,
                 std::span<const StoredMatrix> views) {
  const auto before = runs.begin() + static_cast<std::ptrdiff_t>(kind);
  const std::int64_t first = std::accumulate(runs.begin(), before, std::int64_t{0});
  const std::int64_t turn = std::accumulate(runs.begin(), runs.end(), std::int64_t{0});
  const std::int64_t run = runs[kind];
  std::int64_t row = 0;
  for (const StoredMatrix& view : views) {
    EXPECT_EQ(view.format->number(), whole.format->number());
    EXPECT_EQ(view.format->groups(view), whole.format->groups(whole));
    for (std::int64_t i = 0; i < view.rows; ++i, ++row) {
      const std::int64_t from = row / run * turn + first + row % run;
      std::vector<float> got(kCols), expected(kCols);
      view.format->widen(view, i, 0, got);
      whole.format->widen(whole, from, 0, expected);
      ASSERT_EQ(got, expected) << "row " << row;
      if (!whole.format->groups(whole)) continue;
      GroupedValues a, b;
      view.format->read_groups(view, i, 0, kCols, a);
      whole.format->read_groups(whole, from, 0, kCols, b);
      ASSERT_TRUE(
          std::ranges::equal(std::span(a.codes).first(kCols), std::span(b.codes).first(kCols)));
      ASSERT_EQ(a.scales, b.scales);
    }
  }
  EXPECT_EQ(row, kRows / turn * run);
}

void expect_apart(const StoredMatrix& whole) {
  for (const std::vector<std::int64_t>& runs : kRuns) {
    const RowTurns turns(whole, runs);
    for (std::size_t kind = 0; kind < runs.size(); ++kind) {
      expect_rows(whole, runs, kind, turns.kind(kind));
    }
  }
}

TEST(RowTurns, TakeMatricesOfAllFormatsApart) {
  std::vector<std::string> kinds = test::packed_kinds();
  for (const std::string& kind : kinds) {
    SCOPED_TRACE(kind);
    const test::PackedMatrix packed = test::Packer().pack(kind, "q_proj.weight", kRows, kCols);
    test::Tensors tensors;
    for (const test::PackedTensor& one : packed.tensors) {
      tensors.add(one.name, one.type, one.shape, one.bytes);
    }
    const auto whole = find_matrix(tensors, "q_proj.weight", kRows, kCols);
    ASSERT_TRUE(whole);
    expect_apart(*whole);
  }
}

TEST(RowTurns, LeavePlainNumbersWhereTheyAre) {
  std::vector<float> values(kRows * kCols);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const StoredMatrix whole{.format = &f32_format(),
                           .data = reinterpret_cast<const std::byte*>(values.data()),
                           .rows = kRows,
                           .cols = kCols,
                           .stride = kCols * 4};
  expect_apart(whole);
  EXPECT_EQ(RowTurns(whole, kRuns.front()).kind(1).front().format, &f32_format());
}

}  // namespace
}  // namespace dendrite
