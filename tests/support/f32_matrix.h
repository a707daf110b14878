#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quant/formats.h"

namespace dendrite::test {

/// A view of [rows, cols] values in f32, one row behind the other.
inline StoredMatrix f32_matrix(const std::vector<float>& values, std::int64_t rows,
                               std::int64_t cols) {
  return {.format = &f32_format(),
          .data = reinterpret_cast<const std::byte*>(values.data()),
          .rows = rows,
          .cols = cols,
          .stride = cols * 4};
}

}  // namespace dendrite::test
