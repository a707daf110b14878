#include "backend/row_order.h"

#include <numeric>

#include "backend/view_format.h"

namespace dendrite {

RowOrder::RowOrder(const StoredMatrix& whole, const std::vector<std::int64_t>& rows) {
  StoredMatrix view = whole;
  if (!whole.format->number()) {
    format_ = std::make_unique<ViewFormat>(whole, rows, 0);
    view.format = format_.get();
    view.rows = std::ssize(rows);
    views_.push_back(view);
    return;
  }
  for (auto begin = rows.begin(); begin != rows.end();) {  // plain rows are where they are
    auto end = begin + 1;
    while (end != rows.end() && *end == *(end - 1) + 1) ++end;
    view.data = whole.row(*begin);
    view.rows = end - begin;
    views_.push_back(view);
    begin = end;
  }
}

RowOrder::~RowOrder() = default;

std::vector<std::int64_t> rows_of_kind(std::int64_t count, std::span<const std::int64_t> runs,
                                       std::size_t kind) {
  const auto before = runs.begin() + static_cast<std::ptrdiff_t>(kind);
  const std::int64_t first = std::accumulate(runs.begin(), before, std::int64_t{0});
  const std::int64_t turn = std::accumulate(before, runs.end(), first);
  std::vector<std::int64_t> rows;
  for (std::int64_t begin = first; begin < count; begin += turn) {
    for (std::int64_t i = 0; i < *before; ++i) rows.push_back(begin + i);
  }
  return rows;
}

std::vector<std::int64_t> rows_of_pairs(std::int64_t count, std::int64_t head,
                                        std::int64_t unrotated, std::int64_t rotated) {
  std::vector<std::int64_t> rows;
  for (std::int64_t begin = 0; begin < count; begin += head) {
    for (std::int64_t i = 0; i < unrotated; ++i) rows.push_back(begin + i);
    const std::int64_t end = unrotated + rotated;
    for (const std::int64_t of_pair : {0, 1}) {
      for (std::int64_t i = unrotated + of_pair; i < end; i += 2) rows.push_back(begin + i);
    }
    for (std::int64_t i = end; i < head; ++i) rows.push_back(begin + i);
  }
  return rows;
}

}  // namespace dendrite
