#pragma once

#include <cstdint>
#include <memory>

#include "quant/format.h"

namespace dendrite {

/// Neighbouring columns of a matrix, as a matrix: a view of `whole`, whatever its format, which
/// lives as long as this.
class ColumnRange {
 public:
  /// Throws Error naming the tensor where the columns of a packed matrix do not begin and end at
  /// multiples of 256, or are not in the order of their groups.
  ColumnRange(const StoredMatrix& whole, std::int64_t first, std::int64_t count);
  ~ColumnRange();
  ColumnRange(ColumnRange&&) noexcept;
  ColumnRange& operator=(ColumnRange&&) noexcept;
  const StoredMatrix& view() const { return view_; }

 private:
  std::unique_ptr<Format> format_;  // of the view, if not the whole's
  StoredMatrix view_;
};

}  // namespace dendrite
