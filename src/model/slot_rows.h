#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/path_stores.h"

namespace dendrite {

/// Which rows of a ring are of the tokens whose K and V lie in a slot of the tree's pages. The
/// oldest rows are overwritten, and their slots then have none. Slots that are written have to be
/// told of, so that none is believed to have the row of another token.
class SlotRows final : public SlotCopies {
 public:
  SlotRows(std::int64_t rows, std::int64_t page_tokens) : rows_(rows), page_tokens_(page_tokens) {}

  /// Takes so many rows that lie one after the other, at most all; returns the first one's place.
  std::int64_t take(std::int64_t count);
  /// The row is one of those taken last.
  void set(std::int64_t slot, std::int64_t row);
  /// The slot's row; -1: there is none, or the slot is none (-1).
  std::int64_t find(std::int64_t slot) const;

  void copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) override;

 private:
  static constexpr std::int64_t kNone = -1;

  std::int64_t rows_;
  std::int64_t page_tokens_;
  std::int64_t taken_ = 0;            // rows so far, those at the end that were left out too
  std::vector<std::int64_t> number_;  // by slot: of its row among those taken
};

}  // namespace dendrite
