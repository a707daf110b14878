// Which experts rows take, and rows by expert. Floor: launches; the logits are few.
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/experts/experts.h"

namespace dendrite::cuda {
namespace {

constexpr int kGroupThreads = 1024;
static_assert(kMostExperts <= kGroupThreads && kMostChosen <= 32);

/// A warp a row; a lane has every 32nd expert. grid (rows)
template <int kOfLane>
__global__ void __launch_bounds__(32) choose_kernel(const __grid_constant__ ExpertsArguments a) {
  let_next_begin();
  wait_for_earlier();
  const int lane = static_cast<int>(threadIdx.x);
  const int experts = a.experts;
  const int chosen = a.chosen;
  const float* logits = a.logits + blockIdx.x * a.logits_stride;
  float weights[kOfLane];
  float most = -INFINITY;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int expert = lane + 32 * i;
    weights[i] = expert < experts ? __ldcg(logits + expert) : -INFINITY;
    most = fmaxf(most, weights[i]);
  }
  most = warp_max(most);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const bool is_there = lane + 32 * i < experts;
    const float weight = is_there ? expf(weights[i] - most) : -1.0f;
    weights[i] = weight == weight ? weight : 0.0f;  // (of NaN there is to be a choice, too)
    sum += is_there ? weights[i] : 0.0f;
  }
  sum = warp_sum(sum);

  // The lane of a choice's number has it.
  int mine = 0;
  float weight = 0;
  for (int choice = 0; choice < chosen; ++choice) {
    float best = -2.0f;
    int at = experts;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (weights[i] > best) {
        best = weights[i];
        at = lane + 32 * i;
      }
    }
    for (int width = 16; width > 0; width /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, width);
      const int other_at = __shfl_xor_sync(0xffffffffu, at, width);
      if (other > best || (other == best && other_at < at)) {
        best = other;
        at = other_at;
      }
    }
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (lane + 32 * i == at) weights[i] = -1.5f;
    }
    if (lane == choice) {
      mine = at;
      weight = best / sum;
    }
  }
  int place = 0;
  float total = 0;
  __shared__ ExpertChoice sorted[32];
  for (int other = 0; other < chosen; ++other) {
    place += __shfl_sync(0xffffffffu, mine, other) < mine ? 1 : 0;
  }
  if (lane < chosen) sorted[place] = {mine, weight};
  __syncwarp();
  for (int choice = 0; choice < chosen; ++choice) total += sorted[choice].weight;
  ExpertChoice* out = a.choices + static_cast<std::int64_t>(blockIdx.x) * a.of_row;
  if (lane < chosen) {
    ExpertChoice choice = sorted[lane];
    if (a.normalised) choice.weight /= total;
    out[lane] = choice;
  }
  if (lane > 0 || a.shared == SharedExpert::kNone) return;
  const bool gated = a.shared == SharedExpert::kGated;
  out[chosen] = {experts, gated ? sigmoid(__ldcg(logits + experts)) : 1.0f};
}

/// The sum of what threads before this one have, by all threads of the block.
__device__ int sum_before(int value, int* of_warps) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int sum = value;
  for (int width = 1; width < 32; width *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, width);
    if (lane >= width) sum += other;
  }
  __syncthreads();
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  for (int i = 0; i < warp; ++i) sum += of_warps[i];
  return sum - value;
}

/// One block. A thread has an expert and a part of the choices; those of an expert keep their
/// order.
__global__ void __launch_bounds__(kGroupThreads)
    group_kernel(const __grid_constant__ ExpertsArguments a) {
  let_next_begin();
  wait_for_earlier();
  __shared__ int counts[kGroupThreads];
  __shared__ int begins[kMostExperts];
  __shared__ int of_warps[32];
  const int thread = static_cast<int>(threadIdx.x);
  const int experts = a.all_experts;
  const int of_row = a.of_row;
  const int pairs = a.rows * of_row;
  const int parts = kGroupThreads / experts;
  const int expert = thread % experts;
  const int part = thread / experts;
  const int of_part = (pairs + parts - 1) / parts;
  const int first = min(pairs, part * of_part);
  const int end = part < parts ? min(pairs, first + of_part) : first;
  int count = 0;
  for (int i = first; i < end; ++i) count += a.choices[i].expert == expert ? 1 : 0;
  counts[thread] = count;
  __syncthreads();

  int all = 0;
  if (part == 0) {
    for (int i = 0; i < parts; ++i) all += counts[i * experts + expert];
  }
  const int begin = sum_before(all, of_warps);
  const int items = (all + kItemRows - 1) / kItemRows;
  const int first_item = sum_before(items, of_warps);
  if (part == 0) {
    begins[expert] = begin;
    for (int i = 0; i < items; ++i) {
      const int before = i * kItemRows;
      a.items[first_item + i] = {expert, begin + before, min(kItemRows, all - before)};
    }
    if (expert == experts - 1) *a.item_count = first_item + items;
  }
  __syncthreads();
  int pair = part < parts ? begins[expert] : 0;
  for (int i = 0; i < min(part, parts); ++i) pair += counts[i * experts + expert];
  for (int i = first; i < end; ++i) {
    if (a.choices[i].expert != expert) continue;
    a.pair_of[i] = pair;
    a.pair_row[pair] = i / of_row;
    ++pair;
  }
}

/// grid (dim / threads, rows)
__global__ void add_kernel(const __grid_constant__ ExpertsArguments a) {
  let_next_begin();
  wait_for_earlier();
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (column >= a.dim) return;
  float& out = a.out[blockIdx.y * a.out_stride + column];
  float sum = out;
  for (int i = 0; i < a.of_row; ++i) {
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.y) * a.of_row + i;
    sum = fmaf(a.choices[at].weight,
               a.down[static_cast<std::int64_t>(a.pair_of[at]) * a.dim + column], sum);
  }
  out = sum;
}

}  // namespace

void launch_choose_experts(const ExpertsArguments& args, cudaStream_t stream) {
  const std::int64_t of_lane = (args.experts + 31) / 32;
  const auto kernel = of_lane <= 2   ? choose_kernel<2>
                      : of_lane <= 4 ? choose_kernel<4>
                      : of_lane <= 8 ? choose_kernel<8>
                                     : choose_kernel<kMostExperts / 32>;
  launch_early(kernel, dim3(static_cast<unsigned>(args.rows)), 32, 0, stream, args);
}

void launch_group_rows(const ExpertsArguments& args, cudaStream_t stream) {
  launch_early(group_kernel, dim3(1), kGroupThreads, 0, stream, args);
}

void launch_add_experts(const ExpertsArguments& args, cudaStream_t stream) {
  constexpr unsigned kThreads = 256;
  const dim3 grid((static_cast<unsigned>(args.dim) + kThreads - 1) / kThreads,
                  static_cast<unsigned>(args.rows));
  launch_early(add_kernel, grid, kThreads, 0, stream, args);
}

}  // namespace dendrite::cuda
