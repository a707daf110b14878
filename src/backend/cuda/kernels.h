#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/attention_plan.h"
#include "backend/cuda/kv_store.h"
#include "backend/cuda/weight.h"
#include "backend/kv_store.h"
#include "backend/rope.h"
#include "backend/tensor.h"

// Launchers of the kernels, one a kind of op. All enqueue on `stream` and return; a launch that
// fails is reported by the caller. Pointers are device memory. Each output is computed by an order
// of operations that depends on its own inputs and on absolute positions alone.
namespace dendrite::cuda {

/// out[t] = row tokens[t] of the weight, widened. `drawn`: tokens of draws, see
/// PassInputs::token_of_draw.
void launch_embed(Tensor out, const std::int32_t* tokens, const std::int32_t* drawn,
                  const CudaWeight& weight, cudaStream_t stream);
void launch_rms_norm(Tensor out, Tensor x, const float* weight, float eps, cudaStream_t stream);
void launch_silu_mul(Tensor out, Tensor gate_up, cudaStream_t stream);
void launch_gather(Tensor out, Tensor x, const std::int32_t* rows, cudaStream_t stream);

// Inputs of products: bf16 rows of `ld` values (a multiple of 8), zero-padded, 16-byte aligned.
void launch_round_rows(void* out, std::int64_t ld, Tensor x, cudaStream_t stream);
/// rms_norm of rows gather[i] of x (null: of all x.rows). x and norm 16-byte aligned.
void launch_norm_rows(void* out, std::int64_t ld, Tensor x, const std::int32_t* gather,
                      const float* norm, float eps, cudaStream_t stream);
bool takes_norm_rows(const Tensor& x);
/// silu_mul; gate_up 16-byte aligned, its stride and half of its columns multiples of 4.
void launch_silu_rows(void* out, std::int64_t ld, Tensor gate_up, cudaStream_t stream);

/// out = or += x W^T + bias in f32, k ascending, one accumulator an output. Any weight dtype.
void launch_matmul_f32(Tensor out, Tensor x, const CudaWeight& weight, const float* bias, bool add,
                       cudaStream_t stream);

/// RopeStore on the device.
struct RopeArguments : Rope {
  Tensor qkv{};
  const std::int64_t* slots = nullptr;       // [rows]
  const ExtraStore* extra_stores = nullptr;  // [*extra_count]
  const std::int32_t* extra_count = nullptr;
  KvView kv{};
};
void launch_rope_and_store(const RopeArguments& args, cudaStream_t stream);
/// Whether a product may do the same with its sums (Epilogue::kRope): whole heads are rotated and
/// none is normed, pages hold bf16.
bool rotates_in_product(const RopeArguments& args);
/// Throws Error naming the shape if launch_rope_and_store failed.
void check_rope_launch(const RopeArguments& args);

/// AttentionPlan on the device.
struct PlanView {
  const std::int64_t* positions = nullptr;
  const AttentionItem* items = nullptr;
  const AttentionPlan::SuperBlock* super_blocks = nullptr;
  const std::int32_t* pages = nullptr;
  std::int64_t rows = 0;
  std::int64_t super_block_count = 0;
  std::int64_t window = 0;
};
struct AttentionArguments {
  Tensor out;
  Tensor q;
  std::int64_t heads = 0;
  float scale_log2e = 1;
  KvView kv;
  PlanView plan;
  float* states = nullptr;  // attention_state_floats()
};
/// Floats of partial results: [super-blocks][rows][heads][head_dim + 2].
std::int64_t attention_state_floats(std::int64_t super_blocks, std::int64_t rows,
                                    std::int64_t heads, std::int64_t head_dim);
/// Any KV dtype and head_dim, products in f32; see tree_attention.h for the fast kernels.
void launch_attention(const AttentionArguments& args, cudaStream_t stream);

/// Reads `bytes` of memory once and writes next to nothing.
void launch_read(const std::byte* data, std::int64_t bytes, std::uint32_t* sink,
                 cudaStream_t stream);

}  // namespace dendrite::cuda
