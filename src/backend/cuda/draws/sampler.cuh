#pragma once

#include <cstdint>

#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/draws/sampler.h"

// Device code of the sampler. All folds run in a fixed order, so that bits depend on the row alone.
namespace dendrite::cuda {

inline constexpr int kChunkTokens = 4096;
inline constexpr int kChunkThreads = 256;
inline constexpr int kFilterThreads = 1024;

struct DeviceRows {
  const float* data;
  std::int64_t stride;
  std::int32_t vocab;

  __device__ const float* row(std::int32_t index) const { return data + index * stride; }
};

struct DeviceDraw {
  std::int32_t row;
  std::int32_t top_k;
  float temperature;
  float top_p;
  double min_p;
  double uniform;

  __host__ __device__ bool filtered() const { return top_k > 0 || top_p < 1 || min_p > 0; }
};

inline constexpr int kMaxDraws = 64;  // a launch: they travel as a kernel argument

struct DrawList {
  DeviceDraw draws[kMaxDraws];
};

struct DrawResult {
  std::int32_t token;
  float logprob;
  double lse;
};

struct Best {
  float value;
  std::int32_t token;
};

/// NaN is never drawn.
__device__ inline float drawable(float logit) {
  return logit == logit ? logit : -INFINITY;
}

/// A row as draws see it.
struct Row {
  const float* logits;

  __device__ float operator[](std::int32_t token) const { return drawable(logits[token]); }
};

/// The same with a mask, and perhaps with edits. All arithmetic on it is that on a Row.
struct MaskedRow {
  const float* logits;  // as the model gave them: what log-probs are of
  const float* edited;  // what is drawn from
  const std::uint32_t* mask;

  __device__ bool allows(std::int32_t token) const {
    const auto bit = static_cast<std::uint32_t>(token);
    return (mask[bit / 32] >> bit % 32 & 1u) != 0;
  }
  __device__ float operator[](std::int32_t token) const {
    const float x = drawable(edited[token]);  // in any case: neither load waits for the other
    return allows(token) ? x : -INFINITY;
  }
};

/// What kernels take beside a list of draws of which none has a mask, ...
struct NoMasks {
  using Stats = ChunkStats;
  __device__ Row row(const float* logits, unsigned /*draw*/) const { return {logits}; }
};
/// ... and of which some have. A mask of ones gives what NoMasks gives, to the bit.
struct MaskList {
  using Stats = MaskedChunkStats;
  const std::uint32_t* masks[kMaxDraws];  // on the device
  const float* edited[kMaxDraws];         // rows with edits; null: the draw's own
  __device__ MaskedRow row(const float* logits, unsigned draw) const {
    return {logits, edited[draw] == nullptr ? logits : edited[draw], masks[draw]};
  }
};

/// Rows to be copied and edited; a kernel argument.
struct EditList {
  struct Row {
    const float* from;
    float* to;
    const LogitChange* changes;  // in the host's memory, like the bans
    const std::int32_t* bans;
    std::int32_t change_count;
    std::int32_t ban_count;
  };
  Row rows[kMaxDraws];
};

/// LogitChange::of, each operation rounded by itself as on the host.
__device__ inline float changed(const LogitChange& change, float logit) {
  const float biased = __fadd_rn(logit, change.bias);
  const float scaled =
      biased < 0 ? __fmul_rn(biased, change.repetition) : __fdiv_rn(biased, change.repetition);
  return __fsub_rn(scaled, change.minus);
}

inline constexpr std::int32_t kNoToken = INT32_MAX;  // above all: any allowed one is better

__device__ inline Best better(Best a, Best b) {
  const bool second = b.value > a.value || (b.value == a.value && b.token < a.token);
  return second ? b : a;
}

/// The best of the block, on all threads. Blocks of whole warps, at most 32.
__device__ inline Best block_best(Best best) {
  __shared__ Best warps[32];
  for (int width = 16; width > 0; width /= 2) {
    best = better(best, {__shfl_xor_sync(0xffffffffu, best.value, width),
                         __shfl_xor_sync(0xffffffffu, best.token, width)});
  }
  __syncthreads();  // an earlier call's readers are done
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  best = warps[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) best = better(best, warps[w]);
  return best;
}

/// The block's sum, on all threads: a butterfly in each warp, then the warps in order.
template <typename T>
__device__ T block_sum(T value) {
  __shared__ T warps[32];
  for (int width = 16; width > 0; width /= 2) value += __shfl_xor_sync(0xffffffffu, value, width);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  T sum = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += warps[w];
  return sum;
}

/// The sum over the threads before this one.
template <typename T>
__device__ T block_before(T value) {
  __shared__ T warps[32];
  const unsigned lane = threadIdx.x % 32;
  T inclusive = value;
  for (unsigned width = 1; width < 32; width *= 2) {
    const T other = __shfl_up_sync(0xffffffffu, inclusive, width);
    if (lane >= width) inclusive += other;
  }
  T before = __shfl_up_sync(0xffffffffu, inclusive, 1);
  if (lane == 0) before = 0;
  __syncthreads();
  if (lane == 31) warps[threadIdx.x / 32] = inclusive;
  __syncthreads();
  T earlier = 0;
  for (unsigned w = 0; w < threadIdx.x / 32; ++w) earlier += warps[w];
  return earlier + before;
}

/// The lowest value of the block, on all threads.
__device__ inline std::int32_t block_min(std::int32_t value) {
  __shared__ std::int32_t warps[32];
  value = __reduce_min_sync(0xffffffffu, value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  for (unsigned w = 0; w < blockDim.x / 32; ++w) value = min(value, warps[w]);
  return value;
}

struct RowStats {
  Best best;
  double lse;
};

/// Terms of sums over chunks: room for one a chunk, as dynamic shared memory of the launch. All
/// threads compute them, and each adds them up by itself, in ascending order.
class Terms {
 public:
  template <typename Term>
  __device__ Terms(int count, Term term) : count_(count) {
    __syncthreads();  // who read earlier terms is done
    for (int c = static_cast<int>(threadIdx.x); c < count; c += static_cast<int>(blockDim.x)) {
      room()[c] = term(c);
    }
    __syncthreads();
  }
  __device__ double operator[](int c) const { return room()[c]; }
  __device__ double sum() const {
    double sum = 0;
    for (int c = 0; c < count_; ++c) sum += room()[c];
    return sum;
  }

 private:
  __device__ static double* room() {
    extern __shared__ double terms[];
    return terms;
  }
  int count_;
};

__device__ inline float raw_max(const ChunkStats& chunk) {
  return chunk.max;
}
__device__ inline float raw_max(const MaskedChunkStats& chunk) {
  return chunk.raw_max;
}

/// log(sum(exp(x))) of the row, `max` being the largest of all.
template <typename Stats>
__device__ double fold_lse(const Stats* stats, int chunks, float max) {
  const Terms terms(chunks, [&](int c) {
    return stats[c].raw * static_cast<double>(expf(raw_max(stats[c]) - max));
  });
  return static_cast<double>(max) + log(terms.sum());
}

/// Folds the chunks, in ascending order, on all threads.
__device__ inline RowStats fold(const ChunkStats* stats, int chunks) {
  Best best{-INFINITY, 0};
  for (int c = static_cast<int>(threadIdx.x); c < chunks; c += static_cast<int>(blockDim.x)) {
    if (stats[c].max > best.value) best = {stats[c].max, stats[c].at};
  }
  RowStats row{block_best(best), -INFINITY};
  if (row.best.value > -INFINITY) row.lse = fold_lse(stats, chunks, row.best.value);
  return row;
}
/// `best` is of what may be drawn, its token kNoToken where nothing may.
__device__ inline RowStats fold(const MaskedChunkStats* stats, int chunks) {
  Best best{-INFINITY, kNoToken};
  Best raw{-INFINITY, 0};
  for (int c = static_cast<int>(threadIdx.x); c < chunks; c += static_cast<int>(blockDim.x)) {
    best = better(best, {stats[c].max, stats[c].at});
    raw.value = fmaxf(raw.value, stats[c].raw_max);
  }
  RowStats row{block_best(best), -INFINITY};
  const float max = block_best(raw).value;
  if (max > -INFINITY) row.lse = fold_lse(stats, chunks, max);
  return row;
}

__device__ inline DrawResult result_of(Row row, std::int32_t token, double lse) {
  return {token, static_cast<float>(static_cast<double>(row.logits[token]) - lse), lse};
}
__device__ inline DrawResult result_of(MaskedRow row, std::int32_t token, double lse) {
  if (token == kNoToken || !(row[token] > -INFINITY)) return {-1, -INFINITY, lse};
  return result_of(Row{row.logits}, token, lse);
}

__device__ inline double chunk_factor(const ChunkStats& chunk, float max, const DeviceDraw& draw) {
  return static_cast<double>(expf((chunk.max - max) / draw.temperature));
}
__device__ inline double scaled_sum(const ChunkStats& chunk, float max, const DeviceDraw& draw) {
  return chunk.scaled * chunk_factor(chunk, max, draw);
}

/// The first token of the chunk at which the weights exp((x - max) / temperature) add up to more
/// than `rest`; where rounding leaves none, the last one with a weight. kChunkThreads threads.
template <typename AnyRow>
__device__ std::int32_t walk_chunk(AnyRow row, std::int32_t vocab, int chunk, float max,
                                   const DeviceDraw& draw, double rest) {
  constexpr int kEach = kChunkTokens / kChunkThreads;
  const std::int32_t begin = chunk * kChunkTokens + static_cast<std::int32_t>(threadIdx.x) * kEach;
  float weights[kEach];
  double sum = 0;
  std::int32_t last = -1;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const float x = begin + j < vocab ? row[begin + j] : -INFINITY;
    weights[j] = expf((x - max) / draw.temperature);
    sum += static_cast<double>(weights[j]);
    if (weights[j] > 0) last = begin + j;
  }
  double cumulative = block_before(sum);
  std::int32_t found = INT32_MAX;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    cumulative += static_cast<double>(weights[j]);
    if (weights[j] > 0 && rest < cumulative) found = min(found, begin + j);
  }
  found = block_min(found);
  const std::int32_t fallback = -block_min(-last);
  return found < INT32_MAX ? found : fallback;
}

/// The tokens that top_k, top_p and min_p leave, and a draw among them. A block of kFilterThreads.
/// Order and ties are those of sample(): by logit, then by lower id.
template <typename AnyRow>
class Filter {
 public:
  __device__ Filter(AnyRow row, std::int32_t vocab, float max, const DeviceDraw& draw)
      : row_(row), vocab_(vocab), max_(max), temperature_(draw.temperature), min_p_(draw.min_p) {
    if (draw.top_k > 0) keep_top_k(draw.top_k);
    if (draw.top_p < 1) keep_top_p(static_cast<double>(draw.top_p));
  }

  /// Inverse CDF in vocabulary order: threads hold adjacent runs of tokens.
  __device__ std::int32_t draw(double uniform) const {
    const std::int32_t each = (vocab_ + kFilterThreads - 1) / kFilterThreads;
    const std::int32_t begin = min(vocab_, static_cast<std::int32_t>(threadIdx.x) * each);
    const std::int32_t end = min(vocab_, begin + each);
    std::int32_t equal = 0;
    for (std::int32_t i = begin; i < end; ++i) equal += key(i) == lowest_ ? 1 : 0;
    const std::int32_t equal_before = block_before(equal);
    const auto kept = [&](std::int32_t i, std::int32_t& rank) {
      const std::uint32_t k = key(i);
      return passes(k, i) && (k > lowest_ || rank++ < ties_);
    };
    std::uint64_t sum = 0;
    std::int32_t rank = equal_before;
    for (std::int32_t i = begin; i < end; ++i) sum += kept(i, rank) ? weight(i) : 0;
    const std::uint64_t total = block_sum(sum);
    const auto target = static_cast<std::uint64_t>(uniform * static_cast<double>(total));
    std::uint64_t cumulative = block_before(sum);
    std::int32_t found = INT32_MAX;
    rank = equal_before;
    for (std::int32_t i = begin; i < end && found == INT32_MAX; ++i) {
      cumulative += kept(i, rank) ? weight(i) : 0;
      if (target < cumulative) found = i;
    }
    return block_min(found);  // uniform < 1: target < total
  }

 private:
  static constexpr std::uint32_t kNothing = 0;  // key of -inf and NaN: never kept

  /// Larger logits have larger keys; 0 for what is never drawn.
  __device__ std::uint32_t key(std::int32_t i) const {
    const float x = row_[i];
    if (!(x > -INFINITY)) return kNothing;
    const std::uint32_t bits = __float_as_uint(x == 0 ? 0.0f : x);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  }
  /// exp((x - max) / temperature) in units of 2^-44: integers add up alike in any order.
  __device__ std::uint64_t weight(std::int32_t i) const {
    return static_cast<std::uint64_t>(plain_weight(i) * 0x1p44 + 0.5);
  }
  __device__ double plain_weight(std::int32_t i) const {
    return static_cast<double>(expf((row_[i] - max_) / temperature_));
  }
  __device__ bool passes(std::uint32_t k, std::int32_t i) const {
    return k != kNothing && (k >= lowest_) && (min_p_ == 0 || plain_weight(i) >= min_p_);
  }

  __device__ std::int32_t count_from(std::uint32_t threshold) const {
    std::int32_t count = 0;
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < vocab_; i += kFilterThreads) {
      const std::uint32_t k = key(i);
      count += k != kNothing && k >= threshold ? 1 : 0;
    }
    return block_sum(count);
  }
  __device__ std::uint64_t mass_from(std::uint32_t threshold) const {
    std::uint64_t mass = 0;
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < vocab_; i += kFilterThreads) {
      const std::uint32_t k = key(i);
      if (k != kNothing && k >= threshold) mass += weight(i);
    }
    return block_sum(mass);
  }
  /// Weight of one token with this key.
  __device__ std::uint64_t weight_of(std::uint32_t k) const {
    const float x = __uint_as_float((k & 0x80000000u) != 0 ? k & 0x7fffffffu : ~k);
    const auto plain = static_cast<double>(expf((x - max_) / temperature_));
    return static_cast<std::uint64_t>(plain * 0x1p44 + 0.5);
  }

  __device__ void keep_top_k(std::int32_t k) {
    if (count_from(1) <= k) return;
    std::uint32_t low = 1;             // count_from(low) >= k
    std::uint32_t high = 0xff800001u;  // count_from(high) < k: above +inf
    while (high - low > 1) {
      const std::uint32_t middle = low + (high - low) / 2;
      (count_from(middle) >= k ? low : high) = middle;
    }
    lowest_ = low;
    ties_ = k - count_from(low + 1);
  }

  /// The smallest set of likeliest tokens that reaches `p` of what is left; at least one.
  __device__ void keep_top_p(double p) {
    const std::uint64_t one = weight_of(lowest_);
    const auto tied_mass = [&](std::uint32_t threshold) {
      // What lies at the lowest key counts as far as top_k kept it.
      if (threshold > lowest_ || ties_ == INT32_MAX) return mass_from(threshold);
      return mass_from(lowest_ + 1) + one * static_cast<std::uint64_t>(ties_);
    };
    const double wanted = p * static_cast<double>(tied_mass(lowest_));
    std::uint32_t low = lowest_;       // mass >= wanted
    std::uint32_t high = 0xff800001u;  // mass < wanted, or 0
    while (high - low > 1) {
      const std::uint32_t middle = low + (high - low) / 2;
      (static_cast<double>(tied_mass(middle)) >= wanted ? low : high) = middle;
    }
    const double missing = wanted - static_cast<double>(mass_from(low + 1));
    const double each = static_cast<double>(weight_of(low));
    const double ties = each > 0 ? ceil(missing / each) : 1;
    const std::int32_t before = low == lowest_ ? ties_ : INT32_MAX;
    lowest_ = low;
    ties_ = static_cast<std::int32_t>(fmin(fmax(ties, 1.0), static_cast<double>(before)));
  }

  AnyRow row_;
  std::int32_t vocab_;
  float max_;
  float temperature_;
  double min_p_;
  std::uint32_t lowest_ = 1;       // keys below it are dropped ...
  std::int32_t ties_ = INT32_MAX;  // ... and of those at it, all but the first so many
};

}  // namespace dendrite::cuda
