#pragma once

#include <cuda_runtime.h>

#include "backend/backend.h"
#include "backend/cuda/weight.h"

namespace dendrite::cuda {

/// Most rows that launch_skinny takes.
inline constexpr std::int64_t kSkinnyRows = 16;

/// What becomes of the sums of a product.
enum class Epilogue : std::uint8_t {
  kStore,    // f32
  kAdd,      // added to f32
  kSiluMul,  // rows of W are ffn gates, then ffn ups: silu(gate) * up in bf16
};

/// One product x W^T of up to kSkinnyRows rows.
struct SkinnyProduct {
  const CudaWeight* weight = nullptr;  // bf16
  const float* bias = nullptr;         // [rows of weight] or null
  std::int64_t rows = 0;
  const void* x = nullptr;  // bf16; rows begin on 16 bytes
  std::int64_t x_stride = 0;
  Epilogue epilogue = Epilogue::kStore;
  void* out = nullptr;
  std::int64_t out_stride = 0;
};

/// Whether launch_skinny takes this weight: bf16, whole tiles of 16 outputs and 32 k, on a device
/// with 200 KB of shared memory a block.
bool skinny_takes(const CudaWeight& weight);

/// Each row's bits depend on that row and the weight alone.
void launch_skinny(const SkinnyProduct& product, cudaStream_t stream);

}  // namespace dendrite::cuda
