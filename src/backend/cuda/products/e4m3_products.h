#pragma once

#include <memory>
#include <span>

#include "backend/cuda/base/device.h"
#include "backend/cuda/products/e4m3_rows.h"
#include "backend/cuda/products/few_rows.h"

namespace dendrite::cuda {

/// Products in FP8 with weights that have a scale a row, or one for 128 x 128, and inputs that are
/// rounded to E4M3 (compute capability 9.0). Sums of 128 columns are made by tensor cores, times
/// scales, and added in f32 in ascending order of k, for any number of rows.
class E4m3Products {
 public:
  explicit E4m3Products(const Device& device);

  /// Whether pack() would take the matrix.
  static bool takes(const Device& device, const StoredMatrix& matrix, const Numerics& numerics);
  /// The stacked matrices as a weight with scales; null where the numerics, the device or what they
  /// are want another one. See Backend::pack.
  static std::unique_ptr<CudaWeight> pack(const Device& device, std::span<const StoredMatrix> parts,
                                          const Numerics& numerics);

  /// Whether launch() takes Epilogue::kRope with these arguments.
  static bool rotates(const CudaWeight& weight, const RopeArguments& rope, std::int64_t rows);
  /// product.x: those of `rows`.
  void launch(const FewRowsProduct& product, const E4m3Rows& rows) const;

 private:
  const Device& device_;
};

}  // namespace dendrite::cuda
