#pragma once

#include <map>
#include <tuple>

#include "backend/cuda/base/device.h"
#include "backend/cuda/products/few_rows_wgmma.h"
#include "backend/cuda/products/weight.h"

namespace dendrite::cuda {

/// Compares a kernel with cuBLASLt without split-K before it is trusted: they must give the
/// same bits, or a row's bits would depend on its company. Sums alone, with bias and addition: what
/// else an epilogue does to them has the operations of the kernels that follow cuBLASLt (tested).
class FewRowsCheck {
 public:
  FewRowsCheck(const Device& device, const WgmmaProducts& products)
      : device_(device), products_(products) {}

  /// Whether the kernel takes this weight and was found to give the bits that cuBLASLt gives to
  /// products of its shape with any number of rows. Tried once a shape, with some numbers of rows,
  /// and waits for the device then. False, without a trial, while the stream is being captured.
  bool passes(const CudaWeight& weight, bool bias, bool add);

  /// What a trial allocates for a while, for weights of at most so many rows and columns.
  static std::int64_t most_bytes(std::int64_t rows, std::int64_t cols);

 private:
  bool try_shape(const CudaWeight& weight, bool bias, bool add) const;

  const Device& device_;
  const WgmmaProducts& products_;
  std::map<std::tuple<std::int64_t, std::int64_t, bool, bool>, bool> known_;
};

}  // namespace dendrite::cuda
