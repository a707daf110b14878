#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cuda/base/device.h"
#include "backend/cuda/products/block_scaled.h"
#include "backend/cuda/products/few_rows.h"

namespace dendrite::cuda {

/// Products of weights in MXFP8 and NVFP4 by the block-scaled instructions of compute capability
/// 12.x, with inputs that are rounded to the same format, for any number of rows. Before weights of
/// a shape are taken, products of the first are compared with what its values say
/// (block_scaled_check.h).
class BlockScaledProducts {
 public:
  explicit BlockScaledProducts(const Device& device);

  /// Whether pack() would look at the matrix.
  bool takes(const StoredMatrix& matrix, const Numerics& numerics) const;
  /// The stacked matrices as a weight; null where the numerics, the device or what they are want
  /// another one, or once products were not right, which warnings() then says. See Backend::pack.
  std::unique_ptr<CudaWeight> pack(std::span<const StoredMatrix> parts, const Numerics& numerics);

  /// Why weights were not taken that a device of this kind should take, in one line.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  const Device& device_;
  bool has_instruction_;
  std::set<std::tuple<BlockFormat, std::int64_t, std::int64_t>> right_;  // formats and shapes
  std::vector<std::string> warnings_;
};

/// product.x: those of `rows`. Its epilogue: kStore or kAdd.
void launch_block_scaled(const FewRowsProduct& product, const BlockScaledRows& rows,
                         cudaStream_t stream);
/// Whether kernels for the current device were compiled with the instruction, which others stand in
/// for elsewhere. Waits for the stream.
bool has_block_scaled_instruction(cudaStream_t stream);

}  // namespace dendrite::cuda
