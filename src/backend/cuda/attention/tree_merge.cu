// Folds the partial results of tree attention, parts in ascending order, level by level as
// tree_plan.h says. One warp a row and head, or span of its dims; rows of one part are there
// already. What a warp does
// for a part beside its multiply-adds is what this costs where rows are many. Floor: each partial
// result read once, from L2 as a rule.
#include <type_traits>

#include "backend/cuda/attention/softmax_state.cuh"
#include "backend/cuda/attention/tree_attention.h"
#include "backend/cuda/attention/tree_output.cuh"
#include "backend/cuda/base/launch.cuh"

namespace dendrite::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kWarps = 4;
constexpr int kAhead = 8;  // parts whose values have room in shared memory
constexpr std::int64_t kManyRows = 512;
constexpr auto kRun = static_cast<std::int32_t>(kRunTokens);
constexpr auto kGroup = static_cast<std::int32_t>(kGroupTokens);

/// A state of a row's softmax: kValues dims a lane.
template <int kValues>
struct State {
  float top = -INFINITY;
  float sum = 0;
  float values[kValues] = {};

  __device__ void fold(const State& right) {
    const Fold weights = fold_of(top, right.top);
    top = weights.top;
    sum = folded(weights, sum, right.sum);
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = folded(weights, values[i], right.values[i]);
  }
};

/// What a warp has in shared memory: values of parts on their way.
template <typename Vector>
using Room = Vector[kAhead][32];

/// A lane's part of a batch of 32, and the one after it.
struct Parts {
  TreePart part{0, INT32_MAX};
  TreePart next{0, INT32_MAX};

  __device__ static Parts load(const TreePart* parts, std::int32_t at, std::int32_t end) {
    Parts loaded;
    if (at < end) loaded.part = parts[at];
    if (at + 1 < end) loaded.next = parts[at + 1];
    return loaded;
  }
};

/// As few as have at most 128 dims, a multiple of 4.
constexpr int spans_of(int head_dim) {
  int count = 1;
  while (head_dim > 128 * count || head_dim % (4 * count) != 0) ++count;
  return count;
}

/// The dims of a head that a warp folds, a vector a lane; further lanes just help.
template <int kDim>
struct Span {
  static constexpr int kCount = spans_of(kDim);  // of a head
  static constexpr int kDims = kDim / kCount;
  using Vector = std::conditional_t<kDims == 64, float2, float4>;
  static constexpr int kValues = sizeof(Vector) / 4;
  static constexpr int kLanes = kDims / kValues;
  static_assert(kLanes <= 32);
};

/// Parts [base, end) of a row.
template <int kDim>
__device__ void merge_span(const TreeAttentionArguments& args, std::int64_t row, int head, int span,
                           std::int32_t base, std::int32_t end, Parts parts,
                           Room<typename Span<kDim>::Vector>& room) {
  using Vector = typename Span<kDim>::Vector;
  constexpr int kValues = Span<kDim>::kValues;
  constexpr int kLanes = Span<kDim>::kLanes;
  const auto heads = static_cast<int>(args.heads);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool has_dims = kLanes == 32 || lane < kLanes;
  const auto* states = reinterpret_cast<const Vector*>(args.states) + span * kLanes + lane;
  const auto* sums = reinterpret_cast<const float2*>(args.states + args.slots * args.heads * kDim);
  State<kValues> run;
  State<kValues> group;
  State<kValues> total;
  while (base < end) {
    const int count = min(end - base, 32);
    const int record = parts.part.slot * heads + head;
    float2 part_sums{-INFINITY, 0};
    if (lane < count) part_sums = sums[record];
    const auto fetch = [&](int i) {
      const int from = __shfl_sync(kAll, record, i % 32);
      if (i < count && has_dims) {
        copy_async(&room[i % kAhead][lane], states + std::int64_t{from} * (kDim / kValues));
      }
      commit_copies();
    };
#pragma unroll
    for (int i = 0; i < kAhead - 1; ++i) fetch(i);
    const unsigned run_ends =
        __ballot_sync(kAll, parts.next.begin / kRun != parts.part.begin / kRun);
    const unsigned group_ends =
        __ballot_sync(kAll, parts.next.begin / kGroup != parts.part.begin / kGroup);
    for (int i = 0; i < count; ++i) {
      State<kValues> part;
      part.top = __shfl_sync(kAll, part_sums.x, i);
      part.sum = __shfl_sync(kAll, part_sums.y, i);
      wait_copies<kAhead - 2>();
      const Vector vector = room[i % kAhead][lane];
      fetch(i + kAhead - 1);
      const auto* from = reinterpret_cast<const float*>(&vector);
#pragma unroll
      for (int j = 0; j < kValues; ++j) part.values[j] = from[j];
      run.fold(part);
      if ((run_ends >> i & 1) == 0) continue;
      group.fold(run);
      run = {};
      if ((group_ends >> i & 1) == 0) continue;
      total.fold(group);
      group = {};
    }
    base += 32;
    parts = Parts::load(args.plan.parts, base + lane, end);
  }

  if (!has_dims) return;
  const float factor = output_factor(args, head, total.top, total.sum);
  const int first = (span * kLanes + lane) * kValues;
  const std::int64_t column = static_cast<std::int64_t>(head) * kDim + first;
  with_output(args, row, column, [&](auto* out) {
#pragma unroll
    for (int i = 0; i < kValues; i += 2) {
      write_output(out + i, total.values[i], total.values[i + 1], factor);
    }
  });
}

/// grid (max_rows, any), block 32 * kWarps
template <int kDim>
__global__ void __launch_bounds__(32 * kWarps, 8)
    merge_kernel(const __grid_constant__ TreeAttentionArguments args) {
  constexpr int kSpans = Span<kDim>::kCount;
  __shared__ Room<typename Span<kDim>::Vector> rooms[kWarps];
  const std::int64_t row = blockIdx.x;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const bool mine = row < args.plan.counts->rows && !has_one_part(args.plan, row);
  const std::int32_t begin = mine ? args.plan.row_parts[row] : 0;
  const std::int32_t end = mine ? args.plan.row_parts[row + 1] : 0;
  const Parts parts = Parts::load(args.plan.parts, begin + lane, end);
  let_next_begin();
  wait_for_earlier();
  if (!mine) return;
  const int spans = static_cast<int>(args.heads) * kSpans;
  for (auto span = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32); span < spans;
       span += static_cast<int>(gridDim.y) * kWarps) {
    merge_span<kDim>(args, row, span / kSpans, span % kSpans, begin, end, parts,
                     rooms[threadIdx.x / 32]);
  }
}

template <int kDim>
void launch(const TreeAttentionArguments& args, cudaStream_t stream) {
  // Many rows, as prefills have them, mostly have one part: then a thread block a row will do.
  const std::int64_t warps = args.heads * Span<kDim>::kCount;
  const std::int64_t spread = args.plan.max_rows > kManyRows ? 1 : (warps + kWarps - 1) / kWarps;
  const dim3 grid(static_cast<unsigned>(args.plan.max_rows), static_cast<unsigned>(spread));
  launch_early(merge_kernel<kDim>, grid, 32 * kWarps, 0, stream, args);
}

}  // namespace

void prepare_tree_merge() {
  for (const auto kernel :
       {merge_kernel<64>, merge_kernel<80>, merge_kernel<96>, merge_kernel<128>, merge_kernel<192>,
        merge_kernel<256>, merge_kernel<320>, merge_kernel<512>, merge_kernel<576>}) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared),
          "attention");
  }
}

void launch_tree_merge(const TreeAttentionArguments& args, cudaStream_t stream) {
  switch (args.kv.head_dim) {
    case 64:
      return launch<64>(args, stream);
    case 80:
      return launch<80>(args, stream);
    case 96:
      return launch<96>(args, stream);
    case 128:
      return launch<128>(args, stream);
    case 192:
      return launch<192>(args, stream);
    case 256:
      return launch<256>(args, stream);
    case 320:
      return launch<320>(args, stream);
    case 512:
      return launch<512>(args, stream);
    default:
      return launch<576>(args, stream);
  }
}

}  // namespace dendrite::cuda
