// Which experts rows take, and rows by expert. Floor: launches; the logits are few.
#include <cfloat>
#include <climits>

#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/experts/experts.h"

namespace dendrite::cuda {
namespace {

constexpr int kGroupThreads = 1024;
static_assert(kMostExperts <= kGroupThreads && kMostChosen <= 32);

/// Rows up to which one block chooses for all and groups them; else a block a row chooses.
constexpr int kTogether = kGroupThreads / 32;

constexpr unsigned kAll = 0xffffffffu;
/// What is gone, or not there, ranks lower than all; what is there, NaN too, at least as kLeast.
constexpr float kNone = -INFINITY;
constexpr float kLeast = -FLT_MAX;

/// One of several, and what it ranks by.
struct Ranked {
  float rank;
  int at;
};

/// The number of the best of what lanes have, the lowest among equals. Ranks are no NaN.
__device__ int best_of_warp(Ranked mine) {
  // Whole numbers in the order of ranks, 0 and -0 alike.
  const int bits = __float_as_int(mine.rank + 0.0f);
  const int ordered = bits < 0 ? bits ^ 0x7fffffff : bits;
  const int best = __reduce_max_sync(kAll, ordered);
  return __reduce_min_sync(kAll, ordered == best ? mine.at : INT_MAX);
}

/// Logits become scores; a lane has every 32nd.
template <int kOfLane>
__device__ void softmax(float (&values)[kOfLane], int experts) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float most = -INFINITY;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) most = fmaxf(most, values[i]);
  most = warp_max(most);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const float weight = lane + 32 * i < experts ? expf(values[i] - most) : 0.0f;
    values[i] = weight == weight ? weight : 0.0f;
    sum += values[i];
  }
  sum = warp_sum(sum);
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) values[i] /= sum;
}

/// The bits of the groups that a row chooses from: those whose two best experts have the largest
/// sum.
template <int kOfLane>
__device__ unsigned choose_groups(const float (&ranks)[kOfLane], const ExpertsArguments& a) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int of_group = a.experts / a.groups;
  float mine = kNone;  // the lane of a group's number has its rank
  for (int group = 0; group < a.groups; ++group) {
    const int begin = group * of_group;
    float first = kNone;
    float second = kNone;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int expert = lane + 32 * i;
      const float rank = expert >= begin && expert < begin + of_group ? ranks[i] : kNone;
      second = fmaxf(second, fminf(first, rank));
      first = fmaxf(first, rank);
    }
    for (int width = 16; width > 0; width /= 2) {
      const float other_first = __shfl_xor_sync(kAll, first, width);
      const float other_second = __shfl_xor_sync(kAll, second, width);
      second = fmaxf(fmaxf(second, other_second), fminf(first, other_first));
      first = fmaxf(first, other_first);
    }
    if (lane == group) mine = fmaxf(of_group > 1 ? first + second : first, kLeast);
  }
  unsigned bits = 0;
  for (int i = 0; i < a.chosen_groups; ++i) {
    const int best = best_of_warp({mine, lane});
    bits |= 1u << best;
    if (lane == best) mine = kNone;
  }
  return bits;
}

/// A row's choices by a warp, a lane of which has every 32nd expert. sorted: [32] for them
template <int kOfLane>
__device__ void choose(const ExpertsArguments& a, int row, ExpertChoice* sorted) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int experts = a.experts;
  const int chosen = a.chosen;
  const float* logits = a.logits + row * a.logits_stride;
  float scores[kOfLane];
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int expert = lane + 32 * i;
    scores[i] = expert < experts ? __ldcg(logits + expert) : -INFINITY;
  }
  if (a.score == RouterScore::kSigmoid) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) scores[i] = sigmoid(scores[i]);
  } else {
    softmax(scores, experts);
  }
  float ranks[kOfLane];
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int expert = lane + 32 * i;
    float rank = scores[i];
    if (a.correction != nullptr && expert < experts) rank += a.correction[expert];
    ranks[i] = expert < experts ? fmaxf(rank, kLeast) : kNone;
  }
  if (a.chosen_groups < a.groups) {
    const unsigned groups = choose_groups(ranks, a);
    const int of_group = experts / a.groups;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int expert = lane + 32 * i;
      if (expert < experts && (groups >> expert / of_group & 1) == 0) ranks[i] = kNone;
    }
  }

  // The lane of a choice's number has it.
  int mine = 0;
  float weight = 0;
  for (int choice = 0; choice < chosen; ++choice) {
    Ranked of_lane{kNone, experts};
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (ranks[i] > of_lane.rank) of_lane = {ranks[i], lane + 32 * i};
    }
    const int best = best_of_warp(of_lane);
    float score = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if (lane + 32 * i != best) continue;
      score = scores[i];
      ranks[i] = kNone;
    }
    score = __shfl_sync(kAll, score, best % 32);
    if (lane == choice) {
      mine = best;
      weight = score;
    }
  }
  int place = 0;
  float total = 0;
  for (int other = 0; other < chosen; ++other) {
    place += __shfl_sync(kAll, mine, other) < mine ? 1 : 0;
  }
  if (lane < chosen) sorted[place] = {mine, weight};
  __syncwarp();
  for (int choice = 0; choice < chosen; ++choice) total += sorted[choice].weight;
  ExpertChoice* out = a.choices + static_cast<std::int64_t>(row) * a.of_row;
  if (lane < chosen) {
    ExpertChoice choice = sorted[lane];
    if (a.normalised) choice.weight /= total + a.sum_bias;
    choice.weight *= a.scale;
    if (a.factors != nullptr) choice.weight *= a.factors[choice.expert];
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
    const int other = __shfl_up_sync(kAll, sum, width);
    if (lane >= width) sum += other;
  }
  __syncthreads();
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  sum += __reduce_add_sync(kAll, lane < warp ? of_warps[lane] : 0);
  return sum - value;
}

/// By one block. A thread has an expert and a part of the choices; those of an expert keep their
/// order.
__device__ void group(const ExpertsArguments& a) {
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

/// grid (rows)
template <int kOfLane>
__global__ void __launch_bounds__(32) choose_kernel(const __grid_constant__ ExpertsArguments a) {
  let_next_begin();
  wait_for_earlier();
  __shared__ ExpertChoice sorted[32];
  choose<kOfLane>(a, static_cast<int>(blockIdx.x), sorted);
}

/// Chooses and groups, of up to kTogether rows. One block.
template <int kOfLane>
__global__ void __launch_bounds__(kGroupThreads)
    choose_and_group_kernel(const __grid_constant__ ExpertsArguments a) {
  // Blocks of the next kernel that came earlier would crowd on the multiprocessors that are free,
  // and with few rows the first ones have all the work.
  wait_for_earlier();
  let_next_begin();
  __shared__ ExpertChoice sorted[kTogether][32];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < a.rows) choose<kOfLane>(a, warp, sorted[warp]);
  __syncthreads();
  group(a);
}

/// Groups what choose_kernel chose. One block.
__global__ void __launch_bounds__(kGroupThreads)
    group_kernel(const __grid_constant__ ExpertsArguments a) {
  wait_for_earlier();
  let_next_begin();  // (See above.)
  group(a);
}

/// A block a choice of a row.
__global__ void weigh_kernel(const __grid_constant__ ExpertsArguments a) {
  let_next_begin();
  wait_for_earlier();
  const int pair = a.pair_of[blockIdx.x];
  const float weight = a.choices[blockIdx.x].weight;
  const auto ld = static_cast<std::int64_t>(a.x_ld);
  const bf16* const from = static_cast<const bf16*>(a.x) + a.pair_row[pair] * ld;
  bf16* const to = static_cast<bf16*>(a.weighed) + pair * ld;
  for (int i = static_cast<int>(threadIdx.x); i < a.x_ld; i += static_cast<int>(blockDim.x)) {
    to[i] = narrow<bf16>(widen(from[i]) * weight);
  }
  __syncthreads();  // all have read them
  if (threadIdx.x > 0) return;
  a.pair_row[pair] = pair;
  a.choices[blockIdx.x].weight = 1;
}

/// grid (dim / threads, rows)
__global__ void add_kernel(const __grid_constant__ ExpertsArguments a) {
  let_next_begin();
  wait_for_earlier();
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (column >= a.dim) return;
  float& out = a.out[blockIdx.y * a.out_stride + column];
  float sum = out;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * a.of_row;
  constexpr int kAtOnce = 8;  // read before any is added
  for (int first = 0; first < a.of_row; first += kAtOnce) {
    float weights[kAtOnce];
    float values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= a.of_row) break;
      const std::int64_t at = row + first + i;
      weights[i] = a.choices[at].weight;
      values[i] = a.down[static_cast<std::int64_t>(a.pair_of[at]) * a.dim + column];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < a.of_row) sum = fmaf(weights[i], values[i], sum);
    }
  }
  out = sum;
}

}  // namespace

void launch_choose_experts(const ExpertsArguments& args, cudaStream_t stream) {
  const std::int64_t of_lane = (args.experts + 31) / 32;
  if (args.rows <= kTogether && of_lane <= 8) {
    const auto together = of_lane <= 2   ? choose_and_group_kernel<2>
                          : of_lane <= 4 ? choose_and_group_kernel<4>
                                         : choose_and_group_kernel<8>;
    launch_early(together, dim3(1), kGroupThreads, 0, stream, args);
    return;
  }
  const auto kernel = of_lane <= 2   ? choose_kernel<2>
                      : of_lane <= 4 ? choose_kernel<4>
                      : of_lane <= 8 ? choose_kernel<8>
                                     : choose_kernel<kMostExperts / 32>;
  launch_early(kernel, dim3(static_cast<unsigned>(args.rows)), 32, 0, stream, args);
  launch_early(group_kernel, dim3(1), kGroupThreads, 0, stream, args);
}

void launch_weigh_inputs(const ExpertsArguments& args, cudaStream_t stream) {
  launch_early(weigh_kernel, dim3(static_cast<unsigned>(args.rows * args.of_row)), 256, 0, stream,
               args);
}

void launch_add_experts(const ExpertsArguments& args, cudaStream_t stream) {
  constexpr unsigned kThreads = 256;
  const dim3 grid((static_cast<unsigned>(args.dim) + kThreads - 1) / kThreads,
                  static_cast<unsigned>(args.rows));
  launch_early(add_kernel, grid, kThreads, 0, stream, args);
}

}  // namespace dendrite::cuda
