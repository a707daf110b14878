// Folds the partial results of tree attention, parts in ascending order, level by level as
// tree_plan.h says. One warp a (row, head); rows of one part are there already. Maxima do not
// depend on the order they are taken in, so the weights of 32 folds are found at once, a part a
// lane, by scans; what is left to do one after the other is a multiply-add a value. Floor: each
// partial result read once, from L2 as a rule.
#include <type_traits>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/softmax_state.cuh"
#include "backend/cuda/tree_attention.h"
#include "backend/cuda/tree_output.cuh"

namespace dendrite::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kWarps = 4;
constexpr int kAhead = 8;  // parts whose values have room in shared memory
constexpr std::int64_t kManyRows = 512;
constexpr auto kBlock = static_cast<std::int32_t>(kBlockTokens);
constexpr auto kRun = static_cast<std::int32_t>(kRunTokens);
constexpr auto kGroup = static_cast<std::int32_t>(kGroupTokens);

/// Weights of one fold: of what was there, and of what joins it.
struct Weights {
  float left;
  float right;
};

/// One level of folding, for the parts of a warp's lanes: maxima over the parts of the lane's run
/// (group, or all), as far as the lane.
struct Level {
  float top;     // including the lane's part
  float before;  // without it

  /// `starts`: lanes where a run begins, of kLongest parts at most. `carried`: the maximum of what
  /// goes on from the batch before.
  template <int kLongest>
  __device__ static Level scan(unsigned starts, float part_top, float carried, int lane) {
    const unsigned mine = starts & (kAll >> (31 - lane));
    const int length = mine == 0 ? lane : lane + __clz(mine) - 31;  // parts before the lane's
    float top = part_top;
#pragma unroll
    for (int width = 1; width < kLongest; width *= 2) {
      const float other = __shfl_up_sync(kAll, top, width);
      if (length >= width) top = fmaxf(top, other);
    }
    if (mine == 0) top = fmaxf(top, carried);
    const float left = __shfl_up_sync(kAll, top, 1);
    return {top, length > 0 ? left : mine == 0 ? carried : -INFINITY};
  }

  /// This level's maximum before the fold of the level below that the lane is in: at its first
  /// part, or what is carried if that was in a batch before.
  __device__ float before_fold(unsigned starts, float carried, int lane) const {
    const unsigned mine = starts & (kAll >> (31 - lane));
    const float there = __shfl_sync(kAll, before, mine == 0 ? 0 : 31 - __clz(mine));
    return mine == 0 ? carried : there;
  }
  __device__ float last_lane() const {
    return __shfl_sync(kAll, top, 31);
  }
};

/// Lanes whose part is in another run (group) than the part before.
__device__ unsigned changes(std::int32_t id, std::int32_t last, int lane) {
  const std::int32_t before = __shfl_up_sync(kAll, id, 1);
  return __ballot_sync(kAll, id != (lane == 0 ? last : before));
}

__device__ Weights weights(float left, float right, float top) {
  return {fold_weight(left, top), fold_weight(right, top)};
}

/// What folding a part takes, for all lanes to read.
struct alignas(16) Step {
  Weights to_run;
  float sum;
  bool run_ends;
  bool group_ends;
  Weights to_group;  // of the run that ends with this part
  Weights to_total;
};

/// Sum and kValues dims a lane.
template <int kValues>
struct Values {
  float sum = 0;
  float values[kValues] = {};

  __device__ void fold(const Values& right, const Weights& weights) {
    const Fold fold{0, weights.left, weights.right};
    sum = folded(fold, sum, right.sum);
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = folded(fold, values[i], right.values[i]);
  }
};

template <typename Vector>
__device__ void copy_vector(Vector* shared, const Vector* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)),
               "l"(global), "n"(sizeof(Vector))
               : "memory");
}

/// What a warp has in shared memory.
template <typename Vector>
struct Room {
  Step steps[32];
  Vector values[kAhead][32];
};

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

/// Parts [base, end) of a row.
template <int kDim, typename Vector>
__device__ void merge_head(const TreeAttentionArguments& args, std::int64_t row, std::int64_t head,
                           std::int32_t base, std::int32_t end, Parts parts, Room<Vector>& room) {
  constexpr int kValues = kDim / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto* states = reinterpret_cast<const Vector*>(args.states);
  const auto* sums = reinterpret_cast<const float2*>(args.states + args.slots * args.heads * kDim);
  std::int32_t last_run = -1;  // of the batch of parts before
  std::int32_t last_group = -1;
  float run_top = -INFINITY;  // up to the batch
  float group_top = -INFINITY;
  float total_top = -INFINITY;
  float open_group = -INFINITY;  // the group's maximum before the last run, the total's before the
  float open_total = -INFINITY;  // last group
  Values<kValues> run;
  Values<kValues> group;
  Values<kValues> total;
  while (base < end) {
    const int count = min(end - base, 32);
    const auto fetch = [&](int i) {
      const std::int64_t slot = __shfl_sync(kAll, parts.part.slot, i % 32);
      if (i < count)
        copy_vector(&room.values[i % kAhead][lane],
                    states + (slot * args.heads + head) * 32 + lane);
      commit_copies();
    };
#pragma unroll
    for (int i = 0; i < kAhead - 1; ++i) fetch(i);
    const bool here = lane < count;
    float2 part_sums{-INFINITY, 0};
    if (here) part_sums = sums[parts.part.slot * args.heads + head];

    const std::int32_t run_id = parts.part.begin / kRun;
    const std::int32_t group_id = parts.part.begin / kGroup;
    const unsigned run_starts = changes(run_id, last_run, lane);
    const unsigned group_starts = changes(group_id, last_group, lane);
    const Level run_level = Level::scan<kRun / kBlock>(run_starts, part_sums.x, run_top, lane);
    const Level group_level = Level::scan<32>(group_starts, part_sums.x, group_top, lane);
    const Level total_level = Level::scan<32>(0, part_sums.x, total_top, lane);
    const float group_before = group_level.before_fold(run_starts, open_group, lane);
    const float total_before = total_level.before_fold(group_starts, open_total, lane);
    Step step;
    step.to_run = weights(run_level.before, part_sums.x, run_level.top);
    step.sum = part_sums.y;
    step.run_ends = parts.next.begin / kRun != run_id;
    step.group_ends = parts.next.begin / kGroup != group_id;
    step.to_group = weights(group_before, run_level.top, group_level.top);
    step.to_total = weights(total_before, group_level.top, total_level.top);
    __syncwarp();
    room.steps[lane] = step;
    __syncwarp();

    for (int i = 0; i < count; ++i) {
      wait_copies<kAhead - 2>();
      const Vector vector = room.values[i % kAhead][lane];
      fetch(i + kAhead - 1);
      const Step& now = room.steps[i];
      Values<kValues> joins;
      joins.sum = now.sum;
      const auto* from = reinterpret_cast<const float*>(&vector);
#pragma unroll
      for (int j = 0; j < kValues; ++j) joins.values[j] = from[j];
      run.fold(joins, now.to_run);
      if (!now.run_ends) continue;
      group.fold(run, now.to_group);
      run = {};
      if (!now.group_ends) continue;
      total.fold(group, now.to_total);
      group = {};
    }
    last_run = __shfl_sync(kAll, run_id, 31);
    last_group = __shfl_sync(kAll, group_id, 31);
    run_top = run_level.last_lane();
    group_top = group_level.last_lane();
    total_top = total_level.last_lane();
    open_group = __shfl_sync(kAll, group_before, 31);
    open_total = __shfl_sync(kAll, total_before, 31);
    base += 32;
    parts = Parts::load(args.plan.parts, base + lane, end);
  }

  const float factor = output_factor(total.sum);
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

/// grid (max_rows, any), block 32 * kWarps
template <int kDim>
__global__ void __launch_bounds__(32 * kWarps, 8)
    merge_kernel(const __grid_constant__ TreeAttentionArguments args) {
  using Vector = std::conditional_t<kDim == 128, float4, float2>;
  __shared__ Room<Vector> rooms[kWarps];
  const std::int64_t row = blockIdx.x;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const bool mine = row < args.plan.counts->rows && !has_one_part(args.plan, row);
  const std::int32_t begin = mine ? args.plan.row_parts[row] : 0;
  const std::int32_t end = mine ? args.plan.row_parts[row + 1] : 0;
  const Parts parts = Parts::load(args.plan.parts, begin + lane, end);
  wait_for_earlier();
  let_next_begin();
  if (!mine) return;
  for (std::int64_t head = blockIdx.y * kWarps + threadIdx.x / 32; head < args.heads;
       head += gridDim.y * kWarps) {
    merge_head<kDim>(args, row, head, begin, end, parts, rooms[threadIdx.x / 32]);
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
  // Many rows, as prefills have them, mostly have one part: then a thread block a row will do.
  const std::int64_t spread =
      args.plan.max_rows > kManyRows ? 1 : (args.heads + kWarps - 1) / kWarps;
  const dim3 grid(static_cast<unsigned>(args.plan.max_rows), static_cast<unsigned>(spread));
  const auto kernel = args.kv.head_dim == 64 ? merge_kernel<64> : merge_kernel<128>;
  launch_early(kernel, grid, 32 * kWarps, 0, stream, args);
}

}  // namespace dendrite::cuda
