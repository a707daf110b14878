#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/attention_plan.h"
#include "backend/cuda/stores/kv_store.h"
#include "backend/tensor.h"

namespace dendrite::cuda {

/// AttentionPlan on the device.
struct PlanView {
  const std::int64_t* positions = nullptr;
  const AttentionItem* items = nullptr;
  const AttentionPlan::SuperBlock* super_blocks = nullptr;
  const std::int32_t* pages = nullptr;
  std::int64_t rows = 0;
  std::int64_t super_block_count = 0;
  AttentionWindow window;
};
struct AttentionArguments {
  Tensor out;
  Tensor q;
  std::int64_t heads = 0;
  float scale_log2e = 1;  // of what scores are, capped ones too
  float cap = 0;          // scores become cap * tanh(cap_factor * q . k) first; 0: they do not
  float cap_factor = 0;
  const float* sinks = nullptr;  // AttentionArgs::sinks
  KvView kv;
  PlanView plan;
  float* states = nullptr;  // attention_state_floats()
};
/// Floats of partial results: [super-blocks][rows][heads][head_dim + 2].
std::int64_t attention_state_floats(std::int64_t super_blocks, std::int64_t rows,
                                    std::int64_t heads, std::int64_t head_dim);
/// Any KV dtype and head_dim, products in f32; see tree_attention.h for the fast kernels.
void launch_attention(const AttentionArguments& args, cudaStream_t stream);

}  // namespace dendrite::cuda
