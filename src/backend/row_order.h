#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quant/format.h"

namespace dendrite {

/// Some rows of a matrix in an order of their own, as matrices that lie one below the other: views
/// of `whole`, whatever its format, which live as long as this.
class RowOrder {
 public:
  /// rows: of `whole`
  RowOrder(const StoredMatrix& whole, const std::vector<std::int64_t>& rows);
  ~RowOrder();
  std::span<const StoredMatrix> views() const { return views_; }

 private:
  std::unique_ptr<Format> format_;  // of the views, if not the whole's
  std::vector<StoredMatrix> views_;
};

/// Of `count` rows that are in turns runs[0] of one kind, runs[1] of another and so on, those of
/// one kind. Requires whole turns.
std::vector<std::int64_t> rows_of_kind(std::int64_t count, std::span<const std::int64_t> runs,
                                       std::size_t kind);

/// `count` rows in heads of `head`, in `rotated` rows of which, behind `unrotated` others, pairs
/// lie beside each other: an order in which they lie half of them apart, as RoPE has them
/// (Backend).
std::vector<std::int64_t> rows_of_pairs(std::int64_t count, std::int64_t head,
                                        std::int64_t unrotated, std::int64_t rotated);

}  // namespace dendrite
