#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "quant/formats.h"
#include "quant/tensors.h"
#include "support/packed_matrix.h"

namespace dendrite::test {

/// A matrix of one of packed_kinds(), in groups of `group` columns where that is open.
class Held {
 public:
  Held(const std::string& kind, std::int64_t group, std::int64_t rows, std::int64_t cols)
      : Held(Packer(group).pack(kind, "a.weight", rows, cols), rows, cols) {}
  /// The packer's next one.
  Held(Packer& packer, const std::string& kind, std::int64_t rows, std::int64_t cols)
      : Held(packer.pack(kind, "a.weight", rows, cols), rows, cols) {}

  Held(PackedMatrix packed, std::int64_t rows, std::int64_t cols) : packed_(std::move(packed)) {
    for (const PackedTensor& tensor : packed_.tensors) {
      tensors_.add(tensor.name, tensor.type, tensor.shape, tensor.bytes);
    }
    matrix_ = *find_matrix(tensors_, "a.weight", rows, cols);
  }
  const StoredMatrix& matrix() const { return matrix_; }
  const std::vector<float>& meant() const { return packed_.meant; }
  std::vector<std::byte>& bytes_of(const std::string& suffix) {
    return std::ranges::find(packed_.tensors, "a.weight" + suffix, &PackedTensor::name)->bytes;
  }

 private:
  PackedMatrix packed_;
  Tensors tensors_;
  StoredMatrix matrix_;
};

}  // namespace dendrite::test
