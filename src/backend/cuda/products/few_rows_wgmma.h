#pragma once

#include "backend/cuda/base/device.h"
#include "backend/cuda/products/few_rows.h"

namespace dendrite::cuda {

/// Products of few rows by warpgroups (wgmma), which compute capability 9.0 alone has.
class WgmmaProducts {
 public:
  /// (From there on cuBLASLt's are as fast on an H200.)
  static constexpr std::int64_t kMostRows = 112;

  explicit WgmmaProducts(const Device& device);

  /// Whether launch() may be tried with this weight: bf16, columns in whole tiles of 64, on a
  /// device that has such products.
  bool takes(const CudaWeight& weight) const;
  /// Whether launch() takes Epilogue::kRope with these arguments: as rotates_in_product(), heads of
  /// a multiple of 8 dims.
  static bool rotates(const RopeArguments& rope);

  /// Every output is one sum over ascending k in steps of 16, then (+ bias), then added: the order
  /// of cuBLASLt without split-K, whose bits it gives (see FewRowsCheck) where rows of f32 results
  /// begin on 16 bytes. Then kRope does what launch_rope_and_store does, to the bit. Throws Error
  /// when the driver refuses to describe the matrices.
  void launch(const FewRowsProduct& product) const;

 private:
  const Device& device_;
  bool fits_;  // the device
};

}  // namespace dendrite::cuda
