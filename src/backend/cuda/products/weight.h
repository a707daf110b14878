#pragma once

#include <memory>
#include <optional>
#include <span>

#include "backend/cuda/base/device.h"
#include "backend/cuda/products/block_scaled.h"
#include "backend/numerics.h"
#include "backend/weight.h"
#include "quant/format.h"

namespace dendrite::cuda {

namespace packed {
struct Kernels;
}

/// How a packed weight lies in memory (packed_layout.h), and who reads it.
struct Packing {
  const packed::Kernels* kernels = nullptr;
  std::uint32_t less = 0;  // 128 - the least nibble as a bf16, twice
};

/// Of a weight in E4M3, in f32: a scale of each row; or [cols / 128, rows / 8] of 8 rows each, and
/// where each 128 rows share theirs, once more as [rows / 128, cols / 128].
struct WeightScales {
  Memory values;
  bool squares = false;
  Memory blocks;  // or nothing

  const float* data() const { return reinterpret_cast<const float*>(values.data()); }
  std::int64_t size_bytes() const { return values.size_bytes() + blocks.size_bytes(); }
};

/// Of a block-scaled weight, whose tiles are BlockWeightLayout's.
struct BlockScales {
  BlockFormat format = BlockFormat::kMxfp8;
  Memory factors;          // of NVFP4, f32: what the scales of each row are multiplied with
  float input_factor = 1;  // the same of its inputs
};

/// A matrix [rows, cols]. Plain: row-major, rows of `ld` values: cols rounded up to 8, zero-padded,
/// so that every row begins on 16 bytes. Or packed, which products read as if it was bf16. Or codes
/// of E4M3 with scales, row-major, whose products round their inputs to E4M3, too. Or block-scaled,
/// whose products round their inputs to its format.
class CudaWeight final : public Weight {
 public:
  /// product: what products with it multiply.
  CudaWeight(std::int64_t rows, std::int64_t cols, DType dtype, ComputeFormat product);
  CudaWeight(std::int64_t rows, std::int64_t cols, const Packing& packing, Memory memory);
  CudaWeight(std::int64_t rows, std::int64_t cols, WeightScales scales, Memory codes);
  CudaWeight(std::int64_t rows, std::int64_t cols, BlockScales scales, Memory tiles);
  std::int64_t rows() const override { return rows_; }
  std::int64_t cols() const override { return cols_; }
  DType dtype() const { return dtype_; }  // of one that is not plain: bf16
  const Packing* packed() const { return packing_ ? &*packing_ : nullptr; }
  const WeightScales* scales() const { return scales_ ? &*scales_ : nullptr; }
  const BlockScales* block_scales() const { return block_scales_ ? &*block_scales_ : nullptr; }
  bool is_bf16() const { return !packing_ && !scales_ && !block_scales_ && dtype_ == DType::kBF16; }
  std::int64_t size_bytes() const override {
    return memory_.size_bytes() + (scales_ ? scales_->size_bytes() : 0) +
           (block_scales_ ? block_scales_->factors.size_bytes() : 0);
  }
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
  std::optional<Packing> packing_;
  std::optional<WeightScales> scales_;
  std::optional<BlockScales> block_scales_;
  Memory memory_;
};

/// See Backend::pack and Backend::random_weight; packed weights are PackedProducts'. What is
/// stacked is kept as one type: what the numerics say, else the one that all parts are stored as,
/// else f32, which holds all exactly.
std::unique_ptr<CudaWeight> pack_weight(const Device& device, std::span<const StoredMatrix> parts,
                                        const Numerics& numerics);
std::unique_ptr<CudaWeight> random_weight(const Device& device, std::int64_t rows,
                                          std::int64_t cols, DType dtype, ComputeFormat product,
                                          std::uint64_t seed);

}  // namespace dendrite::cuda
