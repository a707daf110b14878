// Per-head RMSNorm, RoPE and the store of K and V to pages: one warp a head of a row; lane i has
// pairs i, i + 32, ..., so that what is overwritten is what the lane itself has read. How many
// extra stores there are is read from device memory: a captured graph stays valid.
// Sources: Su et al. 2021, arXiv:2104.09864 (half-split pairs); Qwen Team 2025, arXiv:2505.09388
// (q/k norms). Floor: the bytes of qkv over read bandwidth; for few rows the latency of a launch.
#include "backend/cuda/base/device.h"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/stores/rope.cuh"
#include "backend/cuda/stores/rope.h"

namespace dendrite::cuda {
namespace {

constexpr int kWarps = 8;

/// What becomes of the values of one head of one row.
template <typename T>
class Sink {
 public:
  __device__ Sink(const RopeArguments& args, std::int64_t row, std::int64_t head)
      : args_(args),
        row_(row),
        kv_head_(head - args.heads),
        slot_(args.slots[row]),
        extra_count_(*args.extra_count) {}

  /// Element i, rotated. Keys also take their value along.
  __device__ void put(float* x, std::int64_t i, float rotated) const {
    if (kv_head_ < 0) {
      x[i] = rotated;
      return;
    }
    const float value = __ldcg(x + args_.kv_heads * args_.head_dim + i);
    if (slot_ >= 0) store(slot_, i, rotated, value);
    for (std::int32_t e = 0; e < extra_count_; ++e) {
      if (args_.extra_stores[e].row == row_) store(args_.extra_stores[e].slot, i, rotated, value);
    }
  }

 private:
  __device__ void store(std::int64_t slot, std::int64_t i, float key, float value) const {
    slot_data<T>(args_.kv, slot, kv_head_, false)[i] = narrow<T>(key);
    slot_data<T>(args_.kv, slot, kv_head_, true)[i] = narrow<T>(value);
  }

  const RopeArguments& args_;
  std::int64_t row_;
  std::int64_t kv_head_;  // negative: a query
  std::int64_t slot_;
  std::int32_t extra_count_;
};

/// grid (rows, (heads + kv_heads) / kWarps)
template <typename T>
__global__ void __launch_bounds__(kWarps * 32)
    rope_kernel(const __grid_constant__ RopeArguments args) {
  let_next_begin();
  wait_for_earlier();
  const std::int64_t row = blockIdx.x;
  const std::int64_t head = blockIdx.y * kWarps + threadIdx.x / 32;
  if (head >= args.heads + args.kv_heads) return;
  const std::int64_t dim = args.head_dim;
  const std::int64_t half = args.rotary_dim / 2;
  const std::int64_t lane = threadIdx.x % 32;
  float* x = args.qkv.data + row * args.qkv.stride + head * dim;
  const float* cos_sin = args.cos_sin + row * args.rotary_dim;
  const float* norm = head < args.heads ? args.q_norm : args.k_norm;
  float factor = 1;
  if (norm != nullptr) {
    float sum = 0;
    for (std::int64_t i = lane; i < dim; i += 32) {
      const float v = __ldcg(x + i);
      sum = fmaf(v, v, sum);
    }
    factor = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + args.norm_eps);
  }
  const auto normed = [&](std::int64_t i) {
    const float v = __ldcg(x + i);
    return norm != nullptr ? v * factor * norm[i] : v;
  };
  const Sink<T> sink(args, row, head);
  for (std::int64_t i = lane; i < half; i += 32) {
    float a = normed(i);
    float b = normed(i + half);
    rotate(a, b, __ldcg(cos_sin + i), __ldcg(cos_sin + half + i));
    sink.put(x, i, a);
    sink.put(x, i + half, b);
  }
  for (std::int64_t i = 2 * half + lane; i < dim; i += 32) sink.put(x, i, normed(i));
}

}  // namespace

void launch_rope_and_store(const RopeArguments& args, cudaStream_t stream) {
  const std::int64_t heads = args.heads + args.kv_heads;
  const dim3 grid(static_cast<unsigned>(args.qkv.rows),
                  static_cast<unsigned>((heads + kWarps - 1) / kWarps));
  const auto kernel = args.kv.bf16 ? rope_kernel<bf16> : rope_kernel<float>;
  launch_early(kernel, grid, kWarps * 32, 0, stream, args);
}

bool rotates_in_product(const RopeArguments& args) {
  return args.kv.bf16 && args.q_norm == nullptr && args.k_norm == nullptr &&
         args.rotary_dim == args.head_dim;
}

void check_rope_launch(const RopeArguments& args) {
  check_launch("rope_and_store", {{"rows", args.qkv.rows},
                                  {"heads", args.heads},
                                  {"kv_heads", args.kv_heads},
                                  {"head_dim", args.head_dim}});
}

}  // namespace dendrite::cuda
