#pragma once

#include "backend/cuda/base/device.h"
#include "backend/cuda/products/few_rows.h"

namespace dendrite::cuda {

/// Products of very few rows. k is cut into slices whose sums meet in a fixed order, so not the
/// order of cuBLASLt and WgmmaProducts; each row's bits depend on that row and the weight alone.
class SkinnyProducts {
 public:
  static constexpr std::int64_t kMostRows = 8;

  explicit SkinnyProducts(const Device& device);

  /// Whether launch() takes this weight: bf16, whole tiles of 16 outputs and 32 k, on a device with
  /// 180 KB of shared memory a block.
  bool takes(const CudaWeight& weight) const;
  /// Whether launch() takes Epilogue::kRope with these arguments: as rotates_in_product(), heads of
  /// a multiple of 16 dims.
  static bool rotates(const RopeArguments& rope);

  void launch(const FewRowsProduct& product) const;

 private:
  const Device& device_;
  bool fits_ = false;  // the device
};

}  // namespace dendrite::cuda
