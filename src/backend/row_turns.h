#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quant/format.h"

namespace dendrite {

/// A matrix whose rows are in turns `run` of one kind and `run` of another, taken apart: each kind
/// as matrices that lie one below the other. Views of `whole`, whatever its format, which live as
/// long as this.
class RowTurns {
 public:
  /// Requires whole turns of both kinds.
  RowTurns(const StoredMatrix& whole, std::int64_t run);
  ~RowTurns();
  std::span<const StoredMatrix> first() const { return first_; }
  std::span<const StoredMatrix> second() const { return second_; }

 private:
  std::vector<std::unique_ptr<Format>> formats_;  // of the views, if not the whole's
  std::vector<StoredMatrix> first_;
  std::vector<StoredMatrix> second_;
};

}  // namespace dendrite
