#pragma once

#include "backend/cuda/base/scratch.h"
#include "backend/cuda/products/e4m3_rows.h"
#include "backend/cuda/products/rounded.h"
#include "backend/cuda/products/weight.h"

namespace dendrite::cuda {

/// Memory for what products read, which the next one reuses.
class ProductInputs {
 public:
  ProductInputs(const Device& device, Passes& passes)
      : device_(device), rounded_(device, passes), codes_(device, passes) {}

  /// A tensor as the rows that products with `weight` read.
  Rows round(Tensor x, const CudaWeight& weight) {
    rounded_.grow(x.rows * weight.ld() * 2);
    launch_round_rows(rounded_.data(), weight.ld(), x, device_.stream());
    return {rounded_.data(), RowFormat::kBF16, x.rows, x.cols, weight.ld()};
  }
  /// Room for the inputs of a product with a weight in E4M3; none for those with others.
  E4m3Rows codes(const CudaWeight& weight, std::int64_t rows) {
    E4m3Rows codes{nullptr, rows, weight.cols()};
    if (weight.scales() == nullptr) return codes;
    codes_.grow(codes.size_bytes());
    codes.data = codes_.data();
    return codes;
  }
  /// The same with a block-scaled weight.
  BlockScaledRows blocks(const CudaWeight& weight, std::int64_t rows) {
    if (weight.block_scales() == nullptr) return {};
    BlockScaledRows blocks{nullptr, rows, weight.cols(), weight.block_scales()->format};
    codes_.grow(blocks.size_bytes());
    blocks.data = codes_.data();
    return blocks;
  }

 private:
  const Device& device_;
  Scratch rounded_;  // bf16
  Scratch codes_;
};

}  // namespace dendrite::cuda
