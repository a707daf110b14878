#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backend/cpu/memory.h"
#include "backend/device_info.h"
#include "backend/weight.h"
#include "core/parallel.h"

namespace dendrite::cpu {

/// A matrix [rows, cols] as panels of 64 rows, one contiguous run of memory each:
///   bf16  [rows / 64][cols / 2][64][2]    f32, f16  [rows / 64][cols][64]    zero-padded
class PackedWeight final : public Weight {
 public:
  PackedWeight(std::int64_t rows, std::int64_t cols, DType dtype);
  std::int64_t rows() const override { return rows_; }
  std::int64_t cols() const override { return cols_; }
  DType dtype() const override { return dtype_; }
  std::int64_t size_bytes() const override { return panels() * panel_bytes(); }

  std::int64_t panels() const { return (rows_ + 63) / 64; }
  /// Pairs of k for bf16, k otherwise.
  std::int64_t steps() const { return dtype_ == DType::kBF16 ? (cols_ + 1) / 2 : cols_; }
  std::int64_t step_bytes() const { return dtype_ == DType::kF16 ? 128 : 256; }
  std::int64_t panel_bytes() const { return steps() * step_bytes(); }
  std::byte* data() const { return memory_.data(); }

  /// Row `row`, widened.
  void read_row(std::int64_t row, float* out) const;

 private:
  std::int64_t rows_;
  std::int64_t cols_;
  DType dtype_;
  Memory memory_;
};

/// Stacks `parts` along rows. A value that is not finite, as stored or after conversion to the
/// dtype that `type` keeps weights in, is an Error naming the tensor and its file.
std::unique_ptr<PackedWeight> pack_weight(std::span<const HostMatrix> parts, ComputeType type,
                                          const ThreadPool& pool);
std::unique_ptr<PackedWeight> make_random_weight(std::int64_t rows, std::int64_t cols, DType dtype,
                                                 std::uint64_t seed, const ThreadPool& pool);

}  // namespace dendrite::cpu
