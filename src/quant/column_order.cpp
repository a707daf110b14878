#include "quant/column_order.h"

#include "quant/nibbles.h"

namespace dendrite {

std::vector<std::int32_t> column_order(const StoredMatrix& matrix) {
  if (matrix.groups == nullptr) return {};
  const std::int64_t size = matrix.cols / matrix.scales.rows;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(matrix.scales.rows));
  std::vector<std::int32_t> order(static_cast<std::size_t>(matrix.cols));
  for (std::int64_t k = 0; k < matrix.cols; ++k) {
    const std::int64_t group = word_at(matrix.groups, k);
    std::int64_t& count = counts[static_cast<std::size_t>(group)];
    if (count == size) return {};
    order[static_cast<std::size_t>(group * size + count++)] = static_cast<std::int32_t>(k);
  }
  return order;
}

}  // namespace dendrite
