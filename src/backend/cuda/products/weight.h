#pragma once

#include <memory>
#include <span>

#include "backend/cuda/base/device.h"
#include "backend/numerics.h"
#include "backend/weight.h"
#include "quant/format.h"

namespace dendrite::cuda {

/// A matrix [rows, cols], row-major, rows of `ld` values: cols rounded up to 8, zero-padded, so
/// that every row begins on 16 bytes.
class CudaWeight final : public Weight {
 public:
  /// product: what products with it multiply.
  CudaWeight(std::int64_t rows, std::int64_t cols, DType dtype, ComputeFormat product);
  std::int64_t rows() const override { return rows_; }
  std::int64_t cols() const override { return cols_; }
  DType dtype() const { return dtype_; }
  std::int64_t size_bytes() const override { return rows_ * ld_ * size_of(dtype_); }
  /// Where products compute in bf16, bf16 rows of ld() values, if pieces of four make up the row.
  Rows input(Tensor scratch) const override;
  std::int64_t ld() const { return ld_; }
  std::byte* data() const { return memory_.data(); }

 private:
  std::int64_t rows_;
  std::int64_t cols_;
  std::int64_t ld_;
  DType dtype_;
  bool takes_bf16_;
  Memory memory_;
};

/// See Backend::pack and Backend::random_weight. What is stacked is kept as one type: what the
/// numerics say, else the one that all parts are stored as, else f32, which holds all exactly.
std::unique_ptr<CudaWeight> pack_weight(const Device& device, std::span<const StoredMatrix> parts,
                                        const Numerics& numerics);
std::unique_ptr<CudaWeight> random_weight(const Device& device, std::int64_t rows,
                                          std::int64_t cols, DType dtype, ComputeFormat product,
                                          std::uint64_t seed);

}  // namespace dendrite::cuda
