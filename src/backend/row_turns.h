#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quant/format.h"

namespace dendrite {

/// A matrix whose rows are in turns runs[0] of one kind, runs[1] of another and so on, taken apart:
/// each kind as matrices that lie one below the other. Views of `whole`, whatever its format, which
/// live as long as this.
class RowTurns {
 public:
  /// Requires whole turns of all kinds.
  RowTurns(const StoredMatrix& whole, std::span<const std::int64_t> runs);
  ~RowTurns();
  std::span<const StoredMatrix> kind(std::size_t i) const { return kinds_[i]; }

 private:
  std::vector<std::unique_ptr<Format>> formats_;  // of the views, if not the whole's
  std::vector<std::vector<StoredMatrix>> kinds_;
};

}  // namespace dendrite
