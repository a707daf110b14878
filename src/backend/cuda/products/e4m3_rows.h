#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/tensor.h"

// Inputs of products in FP8: rows rounded to E4M3, 128 neighbours of which share a scale.
namespace dendrite::cuda {

/// Neighbours of a row that share a scale, and columns of a tile of products in FP8.
inline constexpr std::int64_t kE4m3Group = 128;

/// Rows of codes [rows, cols], cols a multiple of kE4m3Group, then scales in f32 [tiles,
/// scale_rows], all in memory that begins on 16 bytes.
struct E4m3Rows {
  std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  std::int64_t tiles() const { return cols / kE4m3Group; }
  /// Rows up to whole eights, which may be read.
  std::int64_t scale_rows() const { return (rows + 7) / 8 * 8; }
  float* scales() const { return reinterpret_cast<float*>(data + rows * cols); }
  std::int64_t size_bytes() const {
    return rows * cols + tiles() * scale_rows() * std::int64_t{sizeof(float)};
  }
};

/// Rows of bf16, `stride` values apart, on 8 bytes. A group's scale is its largest magnitude / 448.
void launch_e4m3_rows(const E4m3Rows& out, const void* rows, std::int64_t stride,
                      cudaStream_t stream);
/// The same of launch_norm_rows()' result, which is not stored.
void launch_e4m3_norm_rows(const E4m3Rows& out, Tensor x, const std::int32_t* gather,
                           const float* norm, float eps, cudaStream_t stream);

}  // namespace dendrite::cuda
