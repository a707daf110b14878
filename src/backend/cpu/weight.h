#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backend/cpu/memory.h"
#include "backend/numerics.h"
#include "backend/weight.h"
#include "core/parallel.h"

namespace dendrite::cpu {

/// How a panel lies in memory: step after step, or (bf16 only) tile after tile, each of them the 16
/// rows of 64 bytes that a matrix register takes.
enum class WeightOrder { kSteps, kTiles };

/// A matrix [rows, cols] as panels of 64 rows, one contiguous run of memory each, zero-padded:
///   kSteps, bf16       [rows / 64][cols / 2][64][2]
///   kSteps, f32, f16   [rows / 64][cols][64]
///   kTiles, bf16       [rows / 64][cols / 32][4][16 pairs][16][2]
class PackedWeight final : public Weight {
 public:
  PackedWeight(std::int64_t rows, std::int64_t cols, DType dtype, WeightOrder order);
  std::int64_t rows() const override { return rows_; }
  std::int64_t cols() const override { return cols_; }
  DType dtype() const override { return dtype_; }
  std::int64_t size_bytes() const override { return panels() * panel_bytes(); }

  std::int64_t panels() const { return (rows_ + 63) / 64; }
  /// Pairs of k for bf16, k otherwise; whole tiles of them in that order.
  std::int64_t steps() const;
  std::int64_t step_bytes() const { return dtype_ == DType::kF16 ? 128 : 256; }
  std::int64_t panel_bytes() const { return steps() * step_bytes(); }
  std::byte* data() const { return memory_.data(); }

  /// Where a step has the value (or pair) of row `lane` of a panel. The 15 rows after it follow, if
  /// `lane` is a multiple of 16; 16 steps from a multiple of 16 on are step_stride() apart.
  std::byte* at(std::int64_t panel, std::int64_t step, std::int64_t lane) const;
  std::int64_t step_stride() const { return order_ == WeightOrder::kTiles ? 64 : step_bytes(); }

  /// Row `row`, widened.
  void read_row(std::int64_t row, float* out) const;

 private:
  std::int64_t rows_;
  std::int64_t cols_;
  DType dtype_;
  WeightOrder order_;
  Memory memory_;
};

/// Stacks `parts` along rows. A value that is not finite, as stored or after conversion to the
/// dtype that weights are kept in, is an Error naming the tensor and its file.
std::unique_ptr<PackedWeight> pack_weight(std::span<const HostMatrix> parts,
                                          const Numerics& numerics, WeightOrder order,
                                          const ThreadPool& pool);
std::unique_ptr<PackedWeight> make_random_weight(std::int64_t rows, std::int64_t cols, DType dtype,
                                                 WeightOrder order, std::uint64_t seed,
                                                 const ThreadPool& pool);

}  // namespace dendrite::cpu
