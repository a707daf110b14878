#pragma once

#include <map>
#include <memory>
#include <span>

#include "backend/cuda/base/device.h"
#include "backend/cuda/products/few_rows.h"

namespace dendrite::cuda {

/// Products with packed weights, decoded in registers, for any number of rows: see packed_codes.cuh
/// for the order of sums.
class PackedProducts {
 public:
  explicit PackedProducts(const Device& device) : device_(device) {}

  /// The stacked matrices as a packed weight; null where the numerics, the device or what they are
  /// want another one. See Backend::pack.
  static std::unique_ptr<CudaWeight> pack(const Device& device, std::span<const StoredMatrix> parts,
                                          const Numerics& numerics);

  /// To be called once a weight is packed, before products with it: many rows have kernels of their
  /// own, which are compared with those of few rows, once a layout. Waits for the device.
  void expect(const CudaWeight& weight);

  /// Whether launch() takes Epilogue::kRope with these arguments: as rotates_in_product(), heads of
  /// a multiple of 16 dims. With more rows a kernel of its own takes less time.
  static bool rotates(const RopeArguments& rope, std::int64_t rows);
  void launch(const FewRowsProduct& product) const;

 private:
  /// Whether weights may be packed for this device: it copies tiles by itself (9.0 and later).
  static bool runs_on(const Device& device);
  /// Once for each layout that weights have.
  static void prepare(const Device& device, const packed::Kernels& kernels);
  /// Whether warpgroups multiply many rows: by an instruction of 9.0 alone.
  static bool multiplies_wide(const Device& device);
  /// Whether both ways give the weight's products the same bits.
  bool agree(const CudaWeight& weight) const;
  void launch(const FewRowsProduct& product, bool wide) const;

  const Device& device_;
  std::map<const packed::Kernels*, bool> known_;  // whether many rows may have their kernels
};

}  // namespace dendrite::cuda
