// Folds the partial results of tree attention, parts in ascending order, level by level as
// tree_plan.h says. One warp a (row, head). Maxima do not depend on the order they are taken in, so
// the weights of 32 folds are found at once, a part a lane, by scans; what is left to do one after
// the other is a multiply-add a value.
// Floor: each partial result read once, from L2 as a rule.
#include <type_traits>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/numbers.cuh"
#include "backend/cuda/softmax_state.cuh"
#include "backend/cuda/tree_attention.h"

namespace dendrite::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kWarps = 4;
constexpr int kAhead = 8;  // parts whose values are in flight
constexpr auto kRun = static_cast<std::int32_t>(kRunTokens);
constexpr auto kGroup = static_cast<std::int32_t>(kGroupTokens);

/// Weights of one fold: of what was there, and of what joins it.
struct Weights {
  float left;
  float right;
};

/// One level of folding, for the parts of a warp's lanes: maxima over the parts with the lane's id
/// (of its run, its group), as far as the lane.
struct Level {
  std::int32_t id = -1;
  float top = -INFINITY;     // including the lane's part
  float before = -INFINITY;  // without it

  /// `last`: the level of lane 31 of the batch before. Ids ascend.
  __device__ static Level scan(std::int32_t id, float part_top, const Level& last, int lane) {
    Level level;
    level.id = id;
    level.top = part_top;
#pragma unroll
    for (int width = 1; width < 32; width *= 2) {
      const float other = __shfl_up_sync(kAll, level.top, width);
      const std::int32_t other_id = __shfl_up_sync(kAll, id, width);
      if (lane >= width && other_id == id) level.top = fmaxf(level.top, other);
    }
    if (last.id == id) level.top = fmaxf(level.top, last.top);
    const float other = __shfl_up_sync(kAll, level.top, 1);
    const std::int32_t other_id = __shfl_up_sync(kAll, id, 1);
    if (lane == 0) {
      level.before = last.id == id ? last.top : -INFINITY;
    } else {
      level.before = other_id == id ? other : -INFINITY;
    }
    return level;
  }

  /// Where a fold of the level below begins, this level's maximum before it: at the lane's first
  /// part of the level below, or what is carried if that was in a batch before.
  __device__ float before_fold(unsigned starts, float carried, int lane) const {
    const unsigned mine = starts & (kAll >> (31 - lane));
    const float there = __shfl_sync(kAll, before, mine == 0 ? 0 : 31 - __clz(mine));
    return mine == 0 ? carried : there;
  }

  __device__ Level of_last_lane() const {
    return {__shfl_sync(kAll, id, 31), __shfl_sync(kAll, top, 31), -INFINITY};
  }
};

__device__ Weights weights(float left, float right, float top) {
  return {fold_weight(left, top), fold_weight(right, top)};
}

/// Sum and kValues dims a lane.
template <int kValues>
struct Values {
  float sum = 0;
  float values[kValues] = {};

  __device__ void fold(const Values& right, const Weights& lanes, int lane) {
    const Fold fold{0, __shfl_sync(kAll, lanes.left, lane), __shfl_sync(kAll, lanes.right, lane)};
    sum = folded(fold, sum, right.sum);
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = folded(fold, values[i], right.values[i]);
  }
};

/// grid (max_rows, heads / kWarps), block 32 * kWarps
template <int kDim>
__global__ void __launch_bounds__(32 * kWarps)
    merge_kernel(const __grid_constant__ TreeAttentionArguments args) {
  constexpr int kValues = kDim / 32;
  using Vector = std::conditional_t<kValues == 4, float4, float2>;
  const std::int64_t row = blockIdx.x;
  const std::int64_t head = blockIdx.y * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool mine = row < args.plan.counts->rows && head < args.heads;
  const TreePart* parts = args.plan.parts;
  std::int32_t base = mine ? args.plan.row_parts[row] : 0;
  const std::int32_t end = mine ? args.plan.row_parts[row + 1] : 0;
  const TreePart none{0, INT32_MAX};
  TreePart part = base + lane < end ? parts[base + lane] : none;
  TreePart next = base + lane + 1 < end ? parts[base + lane + 1] : none;
  wait_for_earlier();
  let_next_begin();
  if (!mine) return;

  const auto* states = reinterpret_cast<const Vector*>(args.states);
  const auto* sums = reinterpret_cast<const float2*>(args.states + args.slots * args.heads * kDim);
  Level last_run;
  Level last_group;
  Level last_total;
  float open_group = -INFINITY;  // the group's maximum before the last run, the total's before the
  float open_total = -INFINITY;  // last group
  Values<kValues> run;
  Values<kValues> group;
  Values<kValues> total;
  while (base < end) {
    const int count = min(end - base, 32);
    const auto fetch = [&](Vector(&values)[kAhead], int first) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const std::int64_t slot = __shfl_sync(kAll, part.slot, (first + i) % 32);
        if (first + i < count) values[i] = states[(slot * args.heads + head) * 32 + lane];
      }
    };
    Vector values[kAhead];
    fetch(values, 0);
    const bool here = lane < count;
    float2 part_sums{-INFINITY, 0};
    if (here) part_sums = sums[part.slot * args.heads + head];

    const Level run_level = Level::scan(part.begin / kRun, part_sums.x, last_run, lane);
    const Level group_level = Level::scan(part.begin / kGroup, part_sums.x, last_group, lane);
    const Level total_level = Level::scan(0, part_sums.x, last_total, lane);
    const std::int32_t previous_run = __shfl_up_sync(kAll, run_level.id, 1);
    const std::int32_t previous_group = __shfl_up_sync(kAll, group_level.id, 1);
    const unsigned run_starts =
        __ballot_sync(kAll, run_level.id != (lane == 0 ? last_run.id : previous_run));
    const unsigned group_starts =
        __ballot_sync(kAll, group_level.id != (lane == 0 ? last_group.id : previous_group));
    const float group_before = group_level.before_fold(run_starts, open_group, lane);
    const float total_before = total_level.before_fold(group_starts, open_total, lane);
    const Weights to_run = weights(run_level.before, part_sums.x, run_level.top);
    const Weights to_group = weights(group_before, run_level.top, group_level.top);
    const Weights to_total = weights(total_before, group_level.top, total_level.top);
    const unsigned run_ends = __ballot_sync(kAll, here && next.begin / kRun != run_level.id);
    const unsigned group_ends = __ballot_sync(kAll, here && next.begin / kGroup != group_level.id);

    for (int first = 0; first < count; first += kAhead) {
      Vector ahead[kAhead];
      fetch(ahead, first + kAhead);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int at = first + i;
        if (at >= count) break;
        Values<kValues> joins;
        joins.sum = __shfl_sync(kAll, part_sums.y, at);
        const auto* from = reinterpret_cast<const float*>(&values[i]);
#pragma unroll
        for (int j = 0; j < kValues; ++j) joins.values[j] = from[j];
        run.fold(joins, to_run, at);
        if ((run_ends >> at & 1) == 0) continue;
        group.fold(run, to_group, at);
        run = {};
        if ((group_ends >> at & 1) == 0) continue;
        total.fold(group, to_total, at);
        group = {};
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) values[i] = ahead[i];
    }
    last_run = run_level.of_last_lane();
    last_group = group_level.of_last_lane();
    last_total = total_level.of_last_lane();
    open_group = __shfl_sync(kAll, group_before, 31);
    open_total = __shfl_sync(kAll, total_before, 31);
    base += 32;
    part = base + lane < end ? parts[base + lane] : none;
    next = base + lane + 1 < end ? parts[base + lane + 1] : none;
  }

  const float factor = total.sum > 0 ? 1.0f / total.sum : 0.0f;
  float out[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) out[i] = __fmaf_rn(total.values[i], factor, 0.0f);
  const std::int64_t column = head * kDim + lane * kValues;
  if (args.out_bf16 != nullptr) {
    auto* target = static_cast<bf16*>(args.out_bf16) + row * args.out_bf16_ld + column;
#pragma unroll
    for (int i = 0; i < kValues; i += 2) {
      reinterpret_cast<std::uint32_t*>(target)[i / 2] = pack_bf16(out[i], out[i + 1]);
    }
  } else {
    *reinterpret_cast<Vector*>(args.out.data + row * args.out.stride + column) =
        *reinterpret_cast<const Vector*>(out);
  }
}

}  // namespace

void prepare_tree_merge() {
  for (const auto kernel : {merge_kernel<64>, merge_kernel<128>}) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared),
          "attention");
  }
}

void launch_tree_merge(const TreeAttentionArguments& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.plan.max_rows),
                  static_cast<unsigned>((args.heads + kWarps - 1) / kWarps));
  const auto kernel = args.kv.head_dim == 64 ? merge_kernel<64> : merge_kernel<128>;
  launch_early(kernel, grid, 32 * kWarps, 0, stream, args);
}

}  // namespace dendrite::cuda
