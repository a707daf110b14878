#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quant/format.h"

namespace dendrite {

/// The format of some rows and columns of a matrix whose bytes its own format alone knows the
/// places of: words of several rows, scales of blocks.
class ViewFormat final : public Format {
 public:
  /// rows: of the whole, in the view's order; empty: all as they are. first: of the columns, from
  /// where whole blocks and, in formats with groups, 256 of them begin
  ViewFormat(const StoredMatrix& whole, std::vector<std::int64_t> rows, std::int64_t first)
      : Format(whole.format->name(), whole.format->stored_type(), whole.format->block(),
               whole.format->block_bytes()),
        whole_(whole),
        rows_(std::move(rows)),
        first_(first) {}

  void widen(const StoredMatrix&, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    whole_.format->widen(whole_, row_of_whole(row), first_ + begin, out);
  }
  std::optional<Groups> groups(const StoredMatrix&) const override {
    return whole_.format->groups(whole_);
  }
  void read_groups(const StoredMatrix&, std::int64_t row, std::int64_t begin, std::int64_t count,
                   GroupedValues& out) const override {
    whole_.format->read_groups(whole_, row_of_whole(row), first_ + begin, count, out);
  }

 private:
  std::int64_t row_of_whole(std::int64_t row) const {
    return rows_.empty() ? row : rows_[static_cast<std::size_t>(row)];
  }

  StoredMatrix whole_;
  std::vector<std::int64_t> rows_;
  std::int64_t first_;
};

}  // namespace dendrite
