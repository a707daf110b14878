#include "backend/cuda/tensor_map.h"

#include <cuda_runtime.h>

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

}  // namespace

bool describes_tiles() {
  return encoder() != nullptr;
}

CUtensorMap describe_tiles(const void* data, std::int64_t rows, std::int64_t cols,
                           std::int64_t stride, int box_rows, int box_tiles) {
  CUtensorMap map{};
  const cuuint64_t sizes[] = {kTileColumns, static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(cols / kTileColumns)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride) * 2, kTileColumns * 2};
  const cuuint32_t box[] = {kTileColumns, static_cast<cuuint32_t>(box_rows),
                            static_cast<cuuint32_t>(box_tiles)};
  const cuuint32_t steps[] = {1, 1, 1};
  const CUresult status =
      encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), sizes, strides,
                box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error("matmul: the driver refuses to describe a matrix of " + std::to_string(rows) +
                " x " + std::to_string(cols) + " (CUresult " + std::to_string(status) + ")");
  }
  return map;
}

}  // namespace dendrite::cuda
