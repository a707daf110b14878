#include "backend/cuda/products/tensor_map.h"

#include <cuda_runtime.h>

#include <array>
#include <string>

#include "dendrite/error.h"

namespace dendrite::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// From the driver, so that nothing links against it.
Encode encoder() {
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                     &found);
    return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(entry) : nullptr;
  }();
  return encode;
}

/// The first dimension is kTileColumns values; strides are of the others, in bytes.
template <std::size_t kDims>
CUtensorMap describe(const void* data, const std::array<cuuint64_t, kDims>& sizes,
                     const std::array<cuuint64_t, kDims - 1>& strides,
                     const std::array<cuuint32_t, kDims>& box) {
  CUtensorMap map{};
  std::array<cuuint32_t, kDims> steps{};
  steps.fill(1);
  const CUresult status =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kDims, const_cast<void*>(data),
                sizes.data(), strides.data(), box.data(), steps.data(),
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    std::string shape;
    for (const cuuint64_t size : sizes)
      shape += (shape.empty() ? "" : " x ") + std::to_string(size);
    throw Error("matmul: the driver refuses to describe a matrix as " + shape + " (CUresult " +
                std::to_string(status) + ")");
  }
  return map;
}

}  // namespace

bool describes_tiles() {
  return encoder() != nullptr;
}

CUtensorMap describe_tiles(const void* data, std::int64_t rows, std::int64_t cols,
                           std::int64_t stride, int box_rows, int box_tiles) {
  return describe<3>(
      data,
      {kTileColumns, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(cols / kTileColumns)},
      {static_cast<cuuint64_t>(stride) * 2, kTileColumns * 2},
      {kTileColumns, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_tiles)});
}

CUtensorMap describe_pairs(const void* data, std::int64_t heads, std::int64_t head_dim,
                           std::int64_t cols, std::int64_t stride, int box_pairs, int box_heads,
                           int box_tiles) {
  const auto half = static_cast<cuuint64_t>(head_dim / 2);
  const auto row_bytes = static_cast<cuuint64_t>(stride) * 2;
  return describe<5>(data,
                     {kTileColumns, 2, half, static_cast<cuuint64_t>(heads),
                      static_cast<cuuint64_t>(cols / kTileColumns)},
                     {half * row_bytes, row_bytes, 2 * half * row_bytes, kTileColumns * 2},
                     {kTileColumns, 2, static_cast<cuuint32_t>(box_pairs),
                      static_cast<cuuint32_t>(box_heads), static_cast<cuuint32_t>(box_tiles)});
}

}  // namespace dendrite::cuda
