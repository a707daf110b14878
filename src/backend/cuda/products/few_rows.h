#pragma once

#include <cstdint>

#include "backend/cuda/products/weight.h"
#include "backend/ops.h"

namespace dendrite::cuda {

struct RopeArguments;

/// One product x W^T of a few rows by a kernel of our own: few_rows_wgmma.h, packed_products.h,
/// skinny.h.
struct FewRowsProduct {
  const CudaWeight* weight = nullptr;  // bf16, or packed
  const float* bias = nullptr;         // [rows of weight] or null
  std::int64_t rows = 0;
  const void* x = nullptr;  // bf16; rows begin on 16 bytes
  std::int64_t x_stride = 0;
  Epilogue epilogue =
      Epilogue::kStore;  // kSiluMul in bf16; kRope: q in f32, k and v to their pages
  void* out = nullptr;
  std::int64_t out_stride = 0;
  const RopeArguments* rope = nullptr;  // kRope; its qkv is not looked at
};

/// Whether a device has what blocks of few_rows_shape.h are made for: wgmma, copies of tiles, the
/// shared memory.
bool multiplies_tiles(const Device& device);

}  // namespace dendrite::cuda
