// Per-head RMSNorm, RoPE and the store of K and V to pages: one warp a head of a row.
// Sources: Su et al. 2021, arXiv:2104.09864 (half-split pairs); Qwen Team 2025, arXiv:2505.09388
// (q/k norms). Floor: the bytes of qkv over read bandwidth.
#include "backend/cuda/kernels.h"
#include "backend/cuda/numbers.cuh"

namespace dendrite::cuda {
namespace {

/// Element `i` of the head after norm and rotation.
struct RotatedHead {
  const float* x;
  const float* norm;  // or null
  const float* cos_sin;
  float factor;
  std::int64_t half;

  __device__ float normed(std::int64_t i) const {
    return norm != nullptr ? x[i] * factor * norm[i] : x[i];
  }
  __device__ float operator()(std::int64_t i) const {
    if (i >= 2 * half) return normed(i);
    const bool low = i < half;
    const std::int64_t pair = low ? i : i - half;
    const float a = normed(pair);
    const float b = normed(pair + half);
    const float c = cos_sin[pair];
    const float s = cos_sin[half + pair];
    // No contraction: the same roundings wherever the compiler inlines this.
    return low ? __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s))
               : __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
  }
};

template <typename T>
__device__ T* slot_data(const KvView& kv, std::int64_t slot, std::int64_t head, bool value) {
  const std::int64_t page = slot >> kv.page_shift;
  const std::int64_t offset = slot - (page << kv.page_shift);
  const std::int64_t run = (page * kv.kv_heads + head) * 2 + (value ? 1 : 0);
  return reinterpret_cast<T*>(kv.data) + (run * kv.page_tokens + offset) * kv.head_dim;
}

/// grid (rows, heads + kv_heads), one warp. The rotated q goes to shared memory first: a lane reads
/// what another one overwrites.
template <typename T>
__global__ void rope_kernel(RopeArguments args) {
  extern __shared__ float rotated[];
  const std::int64_t row = blockIdx.x;
  const std::int64_t head = blockIdx.y;
  const bool is_query = head < args.heads;
  const std::int64_t dim = args.head_dim;
  float* x = args.qkv.data + row * args.qkv.stride + head * dim;
  RotatedHead source{x, is_query ? args.q_norm : args.k_norm, args.cos_sin + row * args.rotary_dim,
                     1.0f, args.rotary_dim / 2};
  if (source.norm != nullptr) {
    float sum = 0;
    for (std::int64_t i = threadIdx.x; i < dim; i += 32) sum = fmaf(x[i], x[i], sum);
    source.factor = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + args.norm_eps);
  }
  for (std::int64_t i = threadIdx.x; i < dim; i += 32) rotated[i] = source(i);
  __syncwarp();
  if (is_query) {
    for (std::int64_t i = threadIdx.x; i < dim; i += 32) x[i] = rotated[i];
    return;
  }
  const std::int64_t kv_head = head - args.heads;
  const float* v = x + args.kv_heads * dim;
  const auto store = [&](std::int64_t slot) {
    T* key = slot_data<T>(args.kv, slot, kv_head, false);
    T* value = slot_data<T>(args.kv, slot, kv_head, true);
    for (std::int64_t i = threadIdx.x; i < dim; i += 32) {
      key[i] = narrow<T>(rotated[i]);
      value[i] = narrow<T>(v[i]);
    }
  };
  if (args.slots[row] >= 0) store(args.slots[row]);
  for (std::int64_t e = 0; e < args.extra_count; ++e) {
    if (args.extra_stores[e].row == row) store(args.extra_stores[e].slot);
  }
}

}  // namespace

void launch_rope_and_store(const RopeArguments& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.qkv.rows),
                  static_cast<unsigned>(args.heads + args.kv_heads));
  const auto shared = static_cast<std::size_t>(args.head_dim) * sizeof(float);
  if (args.kv.bf16) {
    rope_kernel<bf16><<<grid, 32, shared, stream>>>(args);
  } else {
    rope_kernel<float><<<grid, 32, shared, stream>>>(args);
  }
}

}  // namespace dendrite::cuda
