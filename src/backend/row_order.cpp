#include "backend/row_order.h"

#include <numeric>

namespace dendrite {
namespace {

/// Rows of a matrix whose bytes the format alone knows the places of: words of several rows, scales
/// of blocks.
class OrderFormat final : public Format {
 public:
  OrderFormat(const StoredMatrix& whole, const std::vector<std::int64_t>& rows)
      : Format(whole.format->name(), whole.format->stored_type(), whole.format->block(),
               whole.format->block_bytes()),
        whole_(whole),
        rows_(rows) {}

  void widen(const StoredMatrix&, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    whole_.format->widen(whole_, row_of_whole(row), begin, out);
  }
  std::optional<Groups> groups(const StoredMatrix&) const override {
    return whole_.format->groups(whole_);
  }
  void read_groups(const StoredMatrix&, std::int64_t row, std::int64_t begin, std::int64_t count,
                   GroupedValues& out) const override {
    whole_.format->read_groups(whole_, row_of_whole(row), begin, count, out);
  }

 private:
  std::int64_t row_of_whole(std::int64_t row) const { return rows_[static_cast<std::size_t>(row)]; }

  StoredMatrix whole_;
  std::vector<std::int64_t> rows_;
};

}  // namespace

RowOrder::RowOrder(const StoredMatrix& whole, const std::vector<std::int64_t>& rows) {
  StoredMatrix view = whole;
  if (!whole.format->number()) {
    format_ = std::make_unique<OrderFormat>(whole, rows);
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
