#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/stores/kv_store.h"
#include "backend/kv_store.h"
#include "backend/rope.h"
#include "backend/tensor.h"

namespace dendrite::cuda {

/// RopeStore on the device.
struct RopeArguments : Rope {
  Tensor qkv{};
  const std::int64_t* slots = nullptr;  // [rows]
  const ExtraStore* extra_stores = nullptr;
  const std::int32_t* extra_begins = nullptr;  // [rows + 1]: where a row's begin
  KvView kv{};
};
void launch_rope_and_store(const RopeArguments& args, cudaStream_t stream);
/// Whether a product may do the same with its sums (Epilogue::kRope): whole heads are rotated and
/// none is normed, pages hold bf16 (in FP8 a head's
/// largest value decides on all of it), K and V of it.
bool rotates_in_product(const RopeArguments& args);
/// Throws Error naming the shape if launch_rope_and_store failed.
void check_rope_launch(const RopeArguments& args);

}  // namespace dendrite::cuda
