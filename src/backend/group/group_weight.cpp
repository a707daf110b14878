#include "backend/group/group_weight.h"

#include <algorithm>
#include <deque>

#include "backend/column_range.h"
#include "backend/row_order.h"

namespace dendrite::group {

std::vector<std::pair<std::int64_t, std::int64_t>> rows_on(std::span<const std::int64_t> runs,
                                                           std::size_t rank, std::size_t ranks) {
  std::vector<std::pair<std::int64_t, std::int64_t>> rows;
  std::int64_t first = 0;
  for (const std::int64_t run : runs) {
    const std::int64_t each = run / static_cast<std::int64_t>(ranks);
    const std::int64_t begin = first + each * static_cast<std::int64_t>(rank);
    rows.emplace_back(begin, begin + each);
    first += run;
  }
  return rows;
}

struct SharedParts::Cuts {
  std::deque<RowOrder> rows;
  std::deque<ColumnRange> columns;
};

SharedParts::SharedParts(std::span<const StoredMatrix> parts, const Split& split, std::size_t rank,
                         std::size_t ranks)
    : cuts_(std::make_unique<Cuts>()) {
  if (split.of == Split::Of::kInputs) {
    for (const StoredMatrix& part : parts) {
      const std::int64_t count = part.cols / static_cast<std::int64_t>(ranks);
      const std::int64_t first = count * static_cast<std::int64_t>(rank);
      views_.push_back(cuts_->columns.emplace_back(part, first, count).view());
    }
    return;
  }
  const auto wanted = rows_on(split.runs, rank, ranks);
  std::int64_t first = 0;  // row of the stack where a part begins
  for (const StoredMatrix& part : parts) {
    std::vector<std::int64_t> rows;
    for (const auto& [begin, end] : wanted) {
      const std::int64_t last = std::min(end, first + part.rows);
      for (std::int64_t row = std::max(begin, first); row < last; ++row) {
        rows.push_back(row - first);
      }
    }
    first += part.rows;
    if (rows.empty()) continue;
    const auto views = cuts_->rows.emplace_back(part, rows).views();
    views_.insert(views_.end(), views.begin(), views.end());
  }
}

SharedParts::~SharedParts() = default;

}  // namespace dendrite::group
