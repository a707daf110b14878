// Attention over a tree of pages for what tree_attention.h does not take: f32 pages or products,
// any head_dim; pages in f32, bf16 or FP8. One block: (row, up to kMaxWarps query heads of a kv
// head, super-block); one warp a query head, so that a page's lines come from L1 after the first.
// Per (row, head, super-block) a running softmax (m, l, o) over chunks of 32 tokens cut at absolute
// positions; token t of a chunk is lane t's. Tokens a row does not see are skipped, not multiplied:
// their slots may hold NaN. A second kernel folds super-blocks from the first to the last. So a
// row's bits depend on its query, its tokens' K and V and absolute positions alone.
// Floor: the pages' bytes over bandwidth, each page once; pages that rows share come from L2 here.
// Source of the running softmax: Milakov & Gimelshein 2018, arXiv:1805.02867.
#include "backend/cuda/attention/attention_simt.h"

#include <type_traits>

#include "backend/cuda/attention/log2e.h"
#include "backend/cuda/attention/window.cuh"
#include "backend/cuda/base/e4m3.cuh"
#include "backend/cuda/base/numbers.cuh"

namespace dendrite::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kMaxWarps = 8;

/// A run of adjacent values of one token, as 16 bytes.
template <typename T>
struct Pack {
  static constexpr int kValues = 16 / sizeof(T);
  T values[kValues];
};

using Code = std::uint8_t;  // of E4M3
template <typename T>
constexpr bool kHasScales = std::is_same_v<T, Code>;

/// What values of a vector of a page are times.
template <typename T>
__device__ float factor_of(const KvView& kv, const std::byte* page, std::int64_t vector) {
  if constexpr (kHasScales<T>) {
    return e4m3_factor(static_cast<std::uint32_t>(page[kv.scales_offset + vector]));
  } else {
    return 1;
  }
}
template <typename T>
__device__ float widen(T value, float factor) {
  if constexpr (kHasScales<T>) {
    return e4m3_value_of(value, factor);
  } else {
    return cuda::widen(value);
  }
}

/// q . k of one token; q in shared memory, k 16-byte aligned when head_dim is a multiple of Pack.
template <typename T>
__device__ float dot(const float* q, const T* k, float factor, std::int64_t dim) {
  float sum = 0;
  std::int64_t i = 0;
  if (dim % Pack<T>::kValues == 0) {
    for (; i < dim; i += Pack<T>::kValues) {
      const uint4 bits = *reinterpret_cast<const uint4*>(k + i);
      const auto* values = reinterpret_cast<const T*>(&bits);
#pragma unroll
      for (int j = 0; j < Pack<T>::kValues; ++j) {
        sum = fmaf(q[i + j], widen(values[j], factor), sum);
      }
    }
  }
  for (; i < dim; ++i) sum = fmaf(q[i], widen(k[i], factor), sum);
  return sum;
}

/// The state of one (row, head, super-block); lane i holds dims i, i + 32, ...
template <int kDims>
struct State {
  float o[kDims] = {};
  float m = -INFINITY;
  float l = 0;  // of this lane's tokens
};

/// Tokens [begin, end) of an item, inside one chunk; lane i has token chunk + i.
template <typename T, int kDims>
__device__ void add_chunk(State<kDims>& state, const AttentionArguments& args, const float* q,
                          const AttentionItem& item, std::int64_t kv_head, std::int64_t chunk,
                          std::int64_t begin, std::int64_t end) {
  const KvView& kv = args.kv;
  const int lane = threadIdx.x % 32;
  const std::int64_t token = chunk + lane;
  const bool seen = token >= begin && token < end;
  const T* keys = nullptr;
  float key_factor = 1;
  float value_factor = 1;
  if (seen) {
    const std::int64_t index = token - item.begin;
    const std::int32_t page = args.plan.pages[item.first_page + (index >> kv.page_shift)];
    const std::byte* data = kv.data + page * kv.page_stride;
    const std::int64_t vector = kv_head * kv.head_vectors + (index & (kv.page_tokens - 1));
    keys = reinterpret_cast<const T*>(data) + vector * kv.head_dim;
    key_factor = factor_of<T>(kv, data, vector);
    value_factor = factor_of<T>(kv, data, vector + kv.value_vectors);
  }
  float score = seen ? dot(q, keys, key_factor, kv.head_dim) : -INFINITY;
  if (args.cap > 0 && seen) score = args.cap * tanhf(score * args.cap_factor);
  const float top = fmaxf(state.m, warp_max(score));  // finite: someone is seen
  const float factor = exp2f((state.m - top) * args.scale_log2e);
  const float weight = seen ? exp2f((score - top) * args.scale_log2e) : 0.0f;
  state.l = fmaf(state.l, factor, weight);
  state.m = top;
#pragma unroll
  for (int j = 0; j < kDims; ++j) state.o[j] *= factor;
  const auto address = reinterpret_cast<unsigned long long>(keys);
  const std::int64_t value_offset = kv.value_vectors * kv.head_dim;
  for (auto t = static_cast<int>(begin - chunk); t < static_cast<int>(end - chunk); ++t) {
    const float p = __shfl_sync(kAll, weight, t);
    float of_token = 1;
    if constexpr (kHasScales<T>) of_token = __shfl_sync(kAll, value_factor, t);
    const T* values = reinterpret_cast<const T*>(__shfl_sync(kAll, address, t)) + value_offset;
#pragma unroll
    for (int j = 0; j < kDims; ++j) {
      const std::int64_t d = lane + 32 * j;
      if (d < kv.head_dim) state.o[j] = fmaf(p, widen(values[d], of_token), state.o[j]);
    }
  }
}

/// grid (rows, kv_heads * slices of `warps` query heads, super-blocks), block 32 * warps
template <typename T, int kDims>
__global__ void attend_kernel(AttentionArguments args) {
  extern __shared__ float queries[];  // [warps][head_dim]
  const PlanView& plan = args.plan;
  const std::int64_t row = blockIdx.x;
  const std::int64_t slices = gridDim.y / args.kv.kv_heads;
  const std::int64_t kv_head = blockIdx.y / slices;
  const std::int64_t super = blockIdx.z;
  const std::int64_t dim = args.kv.head_dim;
  const std::int64_t group = args.heads / args.kv.kv_heads;
  const int lane = threadIdx.x % 32;
  const std::int64_t of_group = blockIdx.y % slices * (blockDim.x / 32) + threadIdx.x / 32;
  if (of_group >= group) return;
  const std::int64_t head = kv_head * group + of_group;
  float* query = queries + threadIdx.x / 32 * dim;
  const float* q = args.q.data + row * args.q.stride + head * dim;
  for (std::int64_t i = lane; i < dim; i += 32) query[i] = q[i];
  __syncwarp();

  const std::int64_t position = plan.positions[row];
  const std::int64_t first = first_seen(plan.window, static_cast<int>(position));
  const AttentionPlan::SuperBlock items = plan.super_blocks[super];
  State<kDims> state;
  for (std::int32_t base = items.item_begin; base < items.item_end; base += 32) {
    const std::int32_t mine = base + lane;
    const bool holds = mine < items.item_end && plan.items[mine].row_begin <= row &&
                       row < plan.items[mine].row_end;
    for (unsigned left = __ballot_sync(kAll, holds); left != 0; left &= left - 1) {
      const AttentionItem item = plan.items[base + __ffs(static_cast<int>(left)) - 1];
      const std::int64_t begin = max(item.begin, first);
      const std::int64_t end = min(item.end, position + 1);
      for (std::int64_t chunk = begin / 32 * 32; chunk < end; chunk += 32) {
        add_chunk<T>(state, args, query, item, kv_head, chunk, max(chunk, begin),
                     min(chunk + 32, end));
      }
    }
  }
  const std::int64_t record = dim + 2;
  float* out = args.states + ((super * plan.rows + row) * args.heads + head) * record;
  const float sum = warp_sum(state.l);
#pragma unroll
  for (int j = 0; j < kDims; ++j) {
    if (lane + 32 * j < dim) out[lane + 32 * j] = state.o[j];
  }
  if (lane == 0) {
    out[dim] = state.m;
    out[dim + 1] = sum;
  }
}

/// Each head's sink joins at last. grid (rows, heads), one warp
template <int kDims>
__global__ void fold_kernel(AttentionArguments args) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t head = blockIdx.y;
  const std::int64_t dim = args.kv.head_dim;
  const std::int64_t record = dim + 2;
  const int lane = threadIdx.x;
  float o[kDims] = {};
  float m = -INFINITY;
  float l = 0;
  for (std::int64_t super = 0; super < args.plan.super_block_count; ++super) {
    const float* part = args.states + ((super * args.plan.rows + row) * args.heads + head) * record;
    const float part_m = part[dim];
    if (!(part_m > -INFINITY)) continue;  // the row sees nothing of it
    const float top = fmaxf(m, part_m);
    const float old_factor = exp2f((m - top) * args.scale_log2e);
    const float new_factor = exp2f((part_m - top) * args.scale_log2e);
    l = fmaf(l, old_factor, part[dim + 1] * new_factor);
    m = top;
#pragma unroll
    for (int j = 0; j < kDims; ++j) {
      if (lane + 32 * j < dim) o[j] = fmaf(o[j], old_factor, part[lane + 32 * j] * new_factor);
    }
  }
  float factor = l > 0 ? 1.0f / l : 0.0f;
  if (args.sinks != nullptr && l > 0) {
    const float seen = m * args.scale_log2e;
    const float sink = args.sinks[head] * kLog2E;
    const float top = fmaxf(seen, sink);
    const float of_seen = exp2f(seen - top);
    factor = of_seen / fmaf(l, of_seen, exp2f(sink - top));
  }
  float* out = args.out.data + row * args.out.stride + head * dim;
#pragma unroll
  for (int j = 0; j < kDims; ++j) {
    if (lane + 32 * j < dim) out[lane + 32 * j] = o[j] * factor;
  }
}

template <int kDims>
void launch(const AttentionArguments& args, cudaStream_t stream) {
  const std::int64_t group = args.heads / args.kv.kv_heads;
  const std::int64_t slices = (group + kMaxWarps - 1) / kMaxWarps;
  const std::int64_t warps = (group + slices - 1) / slices;
  const dim3 grid(static_cast<unsigned>(args.plan.rows),
                  static_cast<unsigned>(args.kv.kv_heads * slices),
                  static_cast<unsigned>(args.plan.super_block_count));
  const auto threads = static_cast<unsigned>(32 * warps);
  const auto shared = static_cast<std::size_t>(warps * args.kv.head_dim) * sizeof(float);
  switch (args.kv.format) {
    case KvFormat::kF32:
      attend_kernel<float, kDims><<<grid, threads, shared, stream>>>(args);
      break;
    case KvFormat::kBF16:
      attend_kernel<bf16, kDims><<<grid, threads, shared, stream>>>(args);
      break;
    case KvFormat::kFP8:
      attend_kernel<Code, kDims><<<grid, threads, shared, stream>>>(args);
  }
  const dim3 fold_grid(static_cast<unsigned>(args.plan.rows), static_cast<unsigned>(args.heads));
  fold_kernel<kDims><<<fold_grid, 32, 0, stream>>>(args);
}

}  // namespace

std::int64_t attention_state_floats(std::int64_t super_blocks, std::int64_t rows,
                                    std::int64_t heads, std::int64_t head_dim) {
  return super_blocks * rows * heads * (head_dim + 2);
}

void launch_attention(const AttentionArguments& args, cudaStream_t stream) {
  const std::int64_t dim = args.kv.head_dim;
  if (dim <= 64) return launch<2>(args, stream);
  if (dim <= 128) return launch<4>(args, stream);
  if (dim <= 256) return launch<8>(args, stream);
  if (dim <= 512) return launch<16>(args, stream);
  return launch<kMaxHeadDim / 32>(args, stream);
}

}  // namespace dendrite::cuda
