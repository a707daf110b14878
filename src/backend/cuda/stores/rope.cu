// Per-head RMSNorm, RoPE and the store of K and V to pages: one warp a head of a row; lane i has
// pairs i, i + 32, ..., so that what is overwritten is what the lane itself has read. In FP8 the
// warp keeps a key and its value in shared memory until it knows their scales. Which extra
// stores are a row's is read from device memory: a captured graph stays valid.
// Sources: Su et al. 2021, arXiv:2104.09864 (half-split pairs); Qwen Team 2025, arXiv:2505.09388
// (q/k norms). Floor: the bytes of qkv over read bandwidth; for few rows the latency of a launch.
#include "backend/cuda/base/device.h"
#include "backend/cuda/base/e4m3.cuh"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/stores/rope.cuh"
#include "backend/cuda/stores/rope.h"

namespace dendrite::cuda {
namespace {

constexpr int kWarps = 8;

extern __shared__ float vectors_of_warps[];  // FP8: [kWarps][K, V][head_dim]

/// 1 / rms of a head, by all lanes of a warp.
__device__ float norm_factor(const float* x, std::int64_t dim, float eps) {
  float sum = 0;
  for (std::int64_t i = threadIdx.x % 32; i < dim; i += 32) {
    const float v = __ldcg(x + i);
    sum = fmaf(v, v, sum);
  }
  return 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + eps);
}

/// Where one head of one row goes.
struct Places {
  const RopeArguments& args;
  std::int64_t row;
  std::int64_t kv_head;  // negative: a query
  std::int64_t slot;
  ExtraStores extra;

  __device__ Places(const RopeArguments& args, std::int64_t row, std::int64_t head)
      : args(args), row(row), kv_head(head - args.heads), slot(args.slots[row]), extra(args, row) {}

  /// Calls store(slot) for each.
  template <typename Store>
  __device__ void each(Store store) const {
    if (slot >= 0) store(slot);
    extra.each(args, store);
  }
  __device__ bool has_values() const { return args.kv.value_vectors > 0; }
  /// For all lanes of the warp, before value_of(). x: the head of k or q.
  __device__ void norm_values(const float* x) {
    if (kv_head < 0 || args.v_norm == nullptr) return;
    value_factor = norm_factor(x + args.kv_heads * args.head_dim, args.head_dim, args.norm_eps);
  }
  __device__ float value_of(const float* x, std::int64_t i) const {
    const float value = __ldcg(x + args.kv_heads * args.head_dim + i);
    return args.v_norm != nullptr ? value * value_factor * args.v_norm[i] : value;
  }
  float value_factor = 1;
};

/// What becomes of the values of one head of one row, which lies at x: put() for each element i,
/// rotated, then finish(). Keys also take their value along, where there are such.
template <typename T>
class Sink {
 public:
  __device__ Sink(const RopeArguments& args, std::int64_t row, std::int64_t head, const float* x)
      : places_(args, row, head) {
    places_.norm_values(x);
  }

  __device__ void put(float* x, std::int64_t i, float rotated) const {
    if (places_.kv_head < 0) {
      x[i] = rotated;
      return;
    }
    const bool has_values = places_.has_values();
    const float value = has_values ? places_.value_of(x, i) : 0.0f;
    places_.each([&](std::int64_t slot) {
      const KvView& kv = places_.args.kv;
      slot_data<T>(kv, slot, places_.kv_head, false)[i] = narrow<T>(rotated);
      if (has_values) slot_data<T>(kv, slot, places_.kv_head, true)[i] = narrow<T>(value);
    });
  }
  __device__ void finish() const {}

 private:
  Places places_;
};

/// The same in FP8.
struct Codes {};
template <>
class Sink<Codes> {
 public:
  __device__ Sink(const RopeArguments& args, std::int64_t row, std::int64_t head, const float* x)
      : places_(args, row, head),
        vectors_(vectors_of_warps + threadIdx.x / 32 * 2 * args.head_dim) {
    places_.norm_values(x);
  }

  __device__ void put(float* x, std::int64_t i, float rotated) {
    if (places_.kv_head < 0) {
      x[i] = rotated;
      return;
    }
    keep(0, i, rotated);
    if (places_.has_values()) keep(1, i, places_.value_of(x, i));
  }
  /// For all lanes of the warp.
  __device__ void finish() {
    if (places_.kv_head < 0) return;
    __syncwarp();
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      if (part == 1 && !places_.has_values()) break;
      const std::uint32_t scale = e4m3_scale_of(__reduce_max_sync(0xffffffffu, most_[part]));
      places_.each([&](std::int64_t slot) { store(slot, part, scale); });
    }
  }

 private:
  static constexpr int kFour = 4;  // codes that a lane stores at a time, where head_dim allows

  __device__ void keep(int part, std::int64_t i, float value) {
    vectors_[part * places_.args.head_dim + i] = value;
    most_[part] = max(most_[part], finite_magnitude(value));
  }
  __device__ void store(std::int64_t slot, int part, std::uint32_t scale) const {
    const KvView& kv = places_.args.kv;
    const std::int64_t dim = places_.args.head_dim;
    const float* values = vectors_ + part * dim;
    const auto lane = static_cast<std::int64_t>(threadIdx.x % 32);
    auto* codes = slot_data<std::uint8_t>(kv, slot, places_.kv_head, part == 1);
    if (dim % kFour == 0) {
      for (std::int64_t i = lane * kFour; i < dim; i += 32 * kFour) {
        std::uint32_t word = 0;
        for (int j = 0; j < kFour; ++j) word |= e4m3_code_of(values[i + j], scale) << 8 * j;
        *reinterpret_cast<std::uint32_t*>(codes + i) = word;
      }
    } else {
      for (std::int64_t i = lane; i < dim; i += 32) {
        codes[i] = static_cast<std::uint8_t>(e4m3_code_of(values[i], scale));
      }
    }
    if (lane == 0) {
      *slot_scale(kv, slot, places_.kv_head, part == 1) = static_cast<std::uint8_t>(scale);
    }
  }

  Places places_;
  float* vectors_;  // of this warp: K, V
  std::uint32_t most_[2] = {};
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
  const float factor = norm != nullptr ? norm_factor(x, dim, args.norm_eps) : 1.0f;
  const auto normed = [&](std::int64_t i) {
    const float v = __ldcg(x + i);
    return norm != nullptr ? v * factor * norm[i] : v;
  };
  Sink<T> sink(args, row, head, x);
  for (std::int64_t i = lane; i < half; i += 32) {
    float a = normed(i);
    float b = normed(i + half);
    rotate(a, b, __ldcg(cos_sin + i), __ldcg(cos_sin + half + i));
    sink.put(x, i, a);
    sink.put(x, i + half, b);
  }
  for (std::int64_t i = 2 * half + lane; i < dim; i += 32) sink.put(x, i, normed(i));
  sink.finish();
}

auto kernel_of(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return rope_kernel<float>;
    case KvFormat::kBF16:
      return rope_kernel<bf16>;
    case KvFormat::kFP8:
      break;
  }
  return rope_kernel<Codes>;
}

}  // namespace

void launch_rope_and_store(const RopeArguments& args, cudaStream_t stream) {
  const std::int64_t heads = args.heads + args.kv_heads;
  const dim3 grid(static_cast<unsigned>(args.qkv.rows),
                  static_cast<unsigned>((heads + kWarps - 1) / kWarps));
  const std::int64_t shared = args.kv.format == KvFormat::kFP8
                                  ? kWarps * 2 * args.head_dim * std::int64_t{sizeof(float)}
                                  : 0;
  launch_early(kernel_of(args.kv.format), grid, kWarps * 32, static_cast<std::size_t>(shared),
               stream, args);
}

bool rotates_in_product(const RopeArguments& args) {
  return args.kv.format == KvFormat::kBF16 && args.kv.value_vectors > 0 && args.q_norm == nullptr &&
         args.k_norm == nullptr && args.v_norm == nullptr && args.rotary_dim == args.head_dim;
}

void check_rope_launch(const RopeArguments& args) {
  check_launch("rope_and_store", {{"rows", args.qkv.rows},
                                  {"heads", args.heads},
                                  {"kv_heads", args.kv_heads},
                                  {"head_dim", args.head_dim}});
}

}  // namespace dendrite::cuda
