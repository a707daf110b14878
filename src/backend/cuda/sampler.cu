// Draws and log-probs from rows of logits. A row is cut into chunks of 4096 tokens; one kernel sums
// up every chunk (max, sum of exponentials, the same with temperature), a second one folds the
// chunks in ascending order and walks the one chunk that the draw falls into: inverse CDF in
// vocabulary order. Draws with top_k, top_p or min_p find their threshold by bisection over the
// logits' bits, with integer weights, whose sums do not depend on the order of additions.
#include "backend/cuda/sampler.h"

#include <algorithm>
#include <string>

#include "backend/cuda/sampler.cuh"
#include "dendrite/error.h"

namespace dendrite::cuda {
namespace {

constexpr int kMaxDraws = 64;  // a launch: they travel as a kernel argument

struct DrawList {
  DeviceDraw draws[kMaxDraws];
};

/// grid (chunks, draws) or, without draws, (chunks, rows)
template <bool kDraws>
__global__ void chunk_kernel(DeviceRows rows, DrawList list, ChunkStats* stats) {
  const DeviceDraw draw = kDraws ? list.draws[blockIdx.y] : DeviceDraw{};
  const float* row = rows.row(kDraws ? draw.row : static_cast<std::int32_t>(blockIdx.y));
  const auto begin = static_cast<std::int32_t>(blockIdx.x) * kChunkTokens;
  float x[kChunkTokens / kChunkThreads];
  Best best{-INFINITY, 0};
#pragma unroll
  for (int j = 0; j < kChunkTokens / kChunkThreads; ++j) {
    const std::int32_t token = begin + j * kChunkThreads + static_cast<std::int32_t>(threadIdx.x);
    x[j] = token < rows.vocab ? drawable(row[token]) : -INFINITY;
    if (x[j] > best.value) best = {x[j], token};  // ascending tokens: the lowest stays
  }
  best = block_best(best);
  double raw = 0;
  double scaled = 0;
  if (best.value > -INFINITY) {
#pragma unroll
    for (int j = 0; j < kChunkTokens / kChunkThreads; ++j) {
      const float below = x[j] - best.value;
      raw += static_cast<double>(expf(below));
      if (kDraws && draw.temperature > 0) {
        scaled += static_cast<double>(expf(below / draw.temperature));
      }
    }
  }
  raw = block_sum(raw);
  if (kDraws) scaled = block_sum(scaled);
  if (threadIdx.x == 0) {
    stats[blockIdx.y * gridDim.x + blockIdx.x] = {best.value, best.token, raw, scaled};
  }
}

/// Where a launch's results go.
struct DrawOutput {
  DrawResult* results;   // on the host
  std::int32_t* tokens;  // on the device, as far as there is room
  std::int32_t room;

  __device__ void put(const float* row, std::int32_t token, double lse) const {
    if (threadIdx.x != 0) return;
    results[blockIdx.x] = result_of(row, token, lse);
    if (static_cast<std::int32_t>(blockIdx.x) < room) tokens[blockIdx.x] = token;
  }
};

/// grid draws, block kChunkThreads: draws without thresholds.
__global__ void draw_kernel(DeviceRows rows, DrawList list, const ChunkStats* stats, int chunks,
                            DrawOutput out) {
  const DeviceDraw draw = list.draws[blockIdx.x];
  if (draw.filtered()) return;
  const float* row = rows.row(draw.row);
  stats += blockIdx.x * chunks;
  const RowStats whole = fold(stats, chunks);
  if (draw.temperature == 0 || !(whole.best.value > -INFINITY)) {
    out.put(row, whole.best.token, whole.lse);
    return;
  }
  // The chunk that the draw falls into, and how far: every thread walks the same sums.
  const Terms sums(chunks, [&](int c) { return scaled_sum(stats[c], whole.best.value, draw); });
  const double target = draw.uniform * sums.sum();
  double before = 0;
  int chosen = -1;
  double rest = 0;
  for (int c = 0; c < chunks; ++c) {
    const double sum = sums[c];
    if (sum > 0) {
      chosen = c;
      rest = target - before;
      if (target < before + sum) break;
    }
    before += sum;
  }
  rest /= chunk_factor(stats[chosen], whole.best.value, draw);
  const std::int32_t token = walk_chunk(row, rows.vocab, chosen, stats[chosen].max, draw, rest);
  out.put(row, token, whole.lse);
}

/// grid draws, block kFilterThreads: draws with thresholds.
__global__ void filtered_draw_kernel(DeviceRows rows, DrawList list, const ChunkStats* stats,
                                     int chunks, DrawOutput out) {
  const DeviceDraw draw = list.draws[blockIdx.x];
  if (!draw.filtered()) return;
  const float* row = rows.row(draw.row);
  const RowStats whole = fold(stats + blockIdx.x * chunks, chunks);
  std::int32_t token = whole.best.token;
  if (draw.temperature > 0 && whole.best.value > -INFINITY) {
    const Filter filter(row, rows.vocab, whole.best.value, draw);
    token = filter.draw(draw.uniform);
  }
  out.put(row, token, whole.lse);
}

/// grid queries, one warp
__global__ void log_prob_kernel(DeviceRows rows, const TokenQuery* queries, const ChunkStats* stats,
                                int chunks, float* out) {
  const TokenQuery query = queries[blockIdx.x];
  const RowStats whole = fold(stats + static_cast<std::int64_t>(query.row) * chunks, chunks);
  if (threadIdx.x == 0) {
    out[blockIdx.x] = result_of(rows.row(query.row), query.token, whole.lse).logprob;
  }
}

int chunks_of(std::int64_t vocab) {
  return static_cast<int>((vocab + kChunkTokens - 1) / kChunkTokens);
}

/// Shared memory of kernels that fold chunks.
std::size_t terms_bytes(int chunks) {
  return static_cast<std::size_t>(chunks) * sizeof(double);
}

void check_range(const char* op, const char* what, std::int64_t got, std::int64_t count) {
  if (got >= 0 && got < count) return;
  throw Error(std::string(op) + ": " + what + " is " + std::to_string(got) + ", expected 0.." +
              std::to_string(count - 1));
}

}  // namespace

CudaSampler::CudaSampler(Device& device, Timeline& timeline)
    : device_(device), timeline_(timeline), kept_(kKept * 4, "sampling") {}

CudaSampler::~CudaSampler() {
  for (const Results& results : results_) {
    if (results.written != nullptr) cudaEventDestroy(results.written);
  }
}

void CudaSampler::reserve_stats(std::int64_t stats) {
  const auto bytes = stats * static_cast<std::int64_t>(sizeof(ChunkStats));
  if (stats_.size_bytes() >= bytes) return;
  device_.synchronize("draw");
  stats_ = Memory(bytes, "sampling");
}

void CudaSampler::begin_draw(Tensor logits, std::span<const Draw> draws) {
  if (draws.empty()) return;
  if (begun_ == kBegun) throw Error("begin_draw: 2 draws are begun, expected fewer");
  const int chunks = chunks_of(logits.cols);
  const std::size_t shared = terms_bytes(chunks);
  reserve_stats(std::ssize(draws) * chunks);
  Results& place = results_[next_];
  const auto bytes = std::ssize(draws) * static_cast<std::int64_t>(sizeof(DrawResult));
  if (place.host.size_bytes() < bytes) {
    device_.synchronize("draw");  // draws that were forgotten may still write
    place.host = HostMemory(2 * bytes, "draw");
  }
  if (place.written == nullptr) {
    check(cudaEventCreateWithFlags(&place.written, cudaEventDisableTiming), "draw");
  }
  auto* results = reinterpret_cast<DrawResult*>(place.host.data());
  auto* tokens = reinterpret_cast<std::int32_t*>(kept_.data());
  auto* stats = reinterpret_cast<ChunkStats*>(stats_.data());
  const DeviceRows rows{logits.data, logits.stride, static_cast<std::int32_t>(logits.cols)};
  for (std::size_t begin = 0; begin < draws.size(); begin += kMaxDraws) {
    const std::span<const Draw> part =
        draws.subspan(begin, std::min<std::size_t>(kMaxDraws, draws.size() - begin));
    DrawList list{};
    std::size_t filtered = 0;
    for (std::size_t i = 0; i < part.size(); ++i) {
      const Draw& draw = part[i];
      check_range("draw", "row", draw.row, logits.rows);
      list.draws[i] = {draw.row,
                       static_cast<std::int32_t>(std::min<std::int64_t>(draw.top_k, logits.cols)),
                       static_cast<float>(draw.temperature),
                       static_cast<float>(draw.top_p),
                       draw.min_p,
                       draw.uniform};
      filtered += list.draws[i].filtered() ? 1 : 0;
    }
    const auto count = static_cast<unsigned>(part.size());
    ChunkStats* part_stats = stats + begin * static_cast<std::size_t>(chunks);
    const DrawOutput out{results + begin, tokens + begin, kKept - static_cast<std::int32_t>(begin)};
    const dim3 grid(static_cast<unsigned>(chunks), count);
    chunk_kernel<true><<<grid, kChunkThreads, 0, device_.stream()>>>(rows, list, part_stats);
    if (filtered > 0) {
      filtered_draw_kernel<<<count, kFilterThreads, shared, device_.stream()>>>(
          rows, list, part_stats, chunks, out);
    }
    if (filtered < part.size()) {
      draw_kernel<<<count, kChunkThreads, shared, device_.stream()>>>(rows, list, part_stats,
                                                                      chunks, out);
    }
    check(cudaGetLastError(), "draw");
  }
  timeline_.draws_end();
  check(cudaEventRecord(place.written, device_.stream()), "draw");
  next_ = (next_ + 1) % kBegun;
  ++begun_;
}

void CudaSampler::finish_draw(std::span<Draw> draws) {
  if (draws.empty()) return;
  if (begun_ == 0) throw Error("finish_draw: no draws are begun");
  const Results& place = results_[(next_ + kBegun - begun_) % kBegun];
  check(cudaEventSynchronize(place.written), "draw");
  --begun_;
  timeline_.collect();
  const auto* results = reinterpret_cast<const DrawResult*>(place.host.data());
  for (std::size_t i = 0; i < draws.size(); ++i) {
    draws[i].token = results[i].token;
    draws[i].logprob = results[i].logprob;
  }
}

void CudaSampler::forget_draws() {
  begun_ = 0;
  timeline_.forget();
}

void CudaSampler::log_probs(Tensor logits, std::span<const TokenQuery> queries,
                            std::span<float> out) {
  if (queries.empty()) return;
  for (const TokenQuery& query : queries) {
    check_range("log_probs", "row", query.row, logits.rows);
    check_range("log_probs", "token", query.token, logits.cols);
  }
  const int chunks = chunks_of(logits.cols);
  const auto query_bytes = static_cast<std::int64_t>(queries.size_bytes());
  const std::int64_t host_bytes = query_bytes + std::ssize(queries) * 4;
  reserve_stats(logits.rows * chunks);
  if (queries_.size_bytes() < host_bytes) queries_ = HostMemory(host_bytes, "log_probs");
  auto* stats = reinterpret_cast<ChunkStats*>(stats_.data());
  std::copy(queries.begin(), queries.end(), reinterpret_cast<TokenQuery*>(queries_.data()));
  auto* results = reinterpret_cast<float*>(queries_.data() + query_bytes);
  const DeviceRows rows{logits.data, logits.stride, static_cast<std::int32_t>(logits.cols)};
  const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(logits.rows));
  chunk_kernel<false><<<grid, kChunkThreads, 0, device_.stream()>>>(rows, DrawList{}, stats);
  log_prob_kernel<<<static_cast<unsigned>(queries.size()), 32, terms_bytes(chunks),
                    device_.stream()>>>(rows, reinterpret_cast<const TokenQuery*>(queries_.data()),
                                        stats, chunks, results);
  check(cudaGetLastError(), "log_probs");
  device_.synchronize("log_probs");
  std::copy_n(results, queries.size(), out.begin());
}

}  // namespace dendrite::cuda
