#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"

namespace dendrite {

/// Device memory of a model, freed with the object.
class Buffers {
 public:
  explicit Buffers(Backend& backend) : backend_(backend) {}
  /// Zeroed.
  Tensor make(std::int64_t rows, std::int64_t cols) {
    buffers_.push_back(backend_.make_buffer(rows * cols));
    return {buffers_.back()->data(), rows, cols, cols};
  }

 private:
  Backend& backend_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

}  // namespace dendrite
