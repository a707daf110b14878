#pragma once

#include <memory>
#include <span>

#include "backend/cuda/base/device.h"
#include "backend/cuda/products/few_rows.h"

namespace dendrite::cuda {

/// Products of few rows with packed weights, decoded in registers: the bits that the weight widened
/// to bf16 gives in the order of sums of WgmmaProducts (see FewRowsCheck).
class PackedProducts final : public FewRowsKernel {
 public:
  explicit PackedProducts(const Device& device)
      : device_(device), fits_(runs_on(device)), wide_(multiplies_wide(device)) {}

  /// The stacked matrices as a packed weight; null where the numerics, the device or what they are
  /// want another one. See Backend::pack.
  static std::unique_ptr<CudaWeight> pack(const Device& device, std::span<const StoredMatrix> parts,
                                          const Numerics& numerics);

  bool takes(const CudaWeight& weight) const override;
  /// Rows of a launch.
  std::int64_t most_rows() const { return wide_ ? 4 * kMostRows : kMostRows; }
  /// Whether launch() takes Epilogue::kRope with these arguments: as rotates_in_product(), heads of
  /// a multiple of 16 dims. With more rows a kernel of its own takes less time.
  static bool rotates(const RopeArguments& rope, std::int64_t rows);
  void launch(const FewRowsProduct& product) const override;

 private:
  /// Whether weights may be packed for this device: it copies tiles by itself (9.0 and later).
  static bool runs_on(const Device& device);
  /// Once for each layout that weights have.
  static void prepare(const Device& device, const packed::Kernels& kernels);
  /// Whether warpgroups multiply more than 64 rows: an instruction of 9.0 alone.
  static bool multiplies_wide(const Device& device);

  const Device& device_;
  bool fits_;
  bool wide_;
};

}  // namespace dendrite::cuda
