#pragma once

#include <cstddef>
#include <vector>

#include "quant/format.h"

namespace dendrite {

/// A matrix whose columns a file holds as rows, the other way round: plain numbers as they are,
/// others as f32.
class TransposedMatrix {
 public:
  explicit TransposedMatrix(const StoredMatrix& matrix);
  const StoredMatrix& matrix() const { return matrix_; }  // as long as this lives

 private:
  void widen(const StoredMatrix& matrix);

  std::vector<std::byte> bytes_;
  StoredMatrix matrix_;
};

}  // namespace dendrite
