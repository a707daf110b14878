// Draws and log-probs from rows of logits. A row is cut into chunks of 4096 tokens; one kernel sums
// up every chunk (max, sum of exponentials, the same with temperature), a second one folds the
// chunks in ascending order and walks the one chunk that the draw falls into: inverse CDF in
// vocabulary order. Draws with top_k, top_p or min_p find their threshold by bisection over the
// logits' bits, with integer weights, whose sums do not depend on the order of additions. Masks
// come as bits, 1/32 of a row's bytes; what a draw may not take is -inf to all of this but the sums
// that log-probs come from. A row whose logits are edited is copied, and drawn from the copy.
#include "backend/cuda/draws/sampler.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "backend/cuda/base/fetch.h"
#include "backend/cuda/draws/sampler.cuh"
#include "dendrite/error.h"

namespace dendrite::cuda {
namespace {

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

/// grid rows
__global__ void edit_kernel(EditList list, std::int32_t vocab) {
  const EditList::Row row = list.rows[blockIdx.x];
  const auto first = static_cast<std::int32_t>(threadIdx.x);
  const auto step = static_cast<std::int32_t>(blockDim.x);
  for (std::int32_t i = first; i < vocab; i += step) row.to[i] = row.from[i];
  __syncthreads();
  for (std::int32_t i = first; i < row.change_count; i += step) {
    const LogitChange change = row.changes[i];
    row.to[change.token] = changed(change, row.from[change.token]);
  }
  __syncthreads();  // a token may have both
  for (std::int32_t i = first; i < row.ban_count; i += step) row.to[row.bans[i]] = -INFINITY;
}

/// grid (chunks, draws): the same for draws of which some have masks or edits.
__global__ void masked_chunk_kernel(DeviceRows rows, DrawList list, MaskList masks,
                                    MaskedChunkStats* stats) {
  constexpr int kEach = kChunkTokens / kChunkThreads;
  const DeviceDraw draw = list.draws[blockIdx.y];
  const MaskedRow row = masks.row(rows.row(draw.row), blockIdx.y);
  const auto begin = static_cast<std::int32_t>(blockIdx.x) * kChunkTokens;
  float raw_x[kEach];
  float x[kEach];
  bool allowed[kEach];
  Best all{-INFINITY, 0};
  Best best{-INFINITY, kNoToken};
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const std::int32_t token = begin + j * kChunkThreads + static_cast<std::int32_t>(threadIdx.x);
    raw_x[j] = token < rows.vocab ? drawable(row.logits[token]) : -INFINITY;
    x[j] = token < rows.vocab ? drawable(row.edited[token]) : -INFINITY;
    allowed[j] = token < rows.vocab && row.allows(token);
    all.value = fmaxf(all.value, raw_x[j]);
    const bool first = best.token == kNoToken;  // else ascending tokens: the lowest stays
    if (allowed[j] && (first || x[j] > best.value)) best = {x[j], token};
  }
  all = block_best(all);
  best = block_best(best);
  double raw = 0;
  double scaled = 0;
  if (all.value > -INFINITY) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) raw += static_cast<double>(expf(raw_x[j] - all.value));
  }
  if (draw.temperature > 0 && best.value > -INFINITY) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (!allowed[j]) continue;
      scaled += static_cast<double>(expf((x[j] - best.value) / draw.temperature));
    }
  }
  raw = block_sum(raw);
  scaled = block_sum(scaled);
  if (threadIdx.x == 0) {
    stats[blockIdx.y * gridDim.x + blockIdx.x] = {{best.value, best.token, raw, scaled}, all.value};
  }
}

/// Where a launch's results go.
struct DrawOutput {
  DrawResult* results;   // on the host
  std::int32_t* tokens;  // on the device, as far as there is room
  std::int32_t room;

  template <typename AnyRow>
  __device__ void put(AnyRow row, std::int32_t token, double lse) const {
    if (threadIdx.x != 0) return;
    const DrawResult result = result_of(row, token, lse);
    results[blockIdx.x] = result;
    // Never -1: a pass that has begun reads the embedding's row.
    if (static_cast<std::int32_t>(blockIdx.x) < room) tokens[blockIdx.x] = max(result.token, 0);
  }
};

/// grid draws, block kChunkThreads: draws without thresholds.
template <typename Masks>
__global__ void draw_kernel(DeviceRows rows, DrawList list, Masks masks,
                            const typename Masks::Stats* stats, int chunks, DrawOutput out) {
  const DeviceDraw draw = list.draws[blockIdx.x];
  if (draw.filtered()) return;
  const auto row = masks.row(rows.row(draw.row), blockIdx.x);
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
template <typename Masks>
__global__ void filtered_draw_kernel(DeviceRows rows, DrawList list, Masks masks,
                                     const typename Masks::Stats* stats, int chunks,
                                     DrawOutput out) {
  const DeviceDraw draw = list.draws[blockIdx.x];
  if (!draw.filtered()) return;
  const auto row = masks.row(rows.row(draw.row), blockIdx.x);
  const RowStats whole = fold(stats + blockIdx.x * chunks, chunks);
  std::int32_t token = whole.best.token;
  if (draw.temperature > 0 && whole.best.value > -INFINITY) {
    const Filter filter(row, rows.vocab, whole.best.value, draw);
    token = filter.draw(draw.uniform);
  }
  out.put(row, token, whole.lse);
}

/// grid queries, one warp; queries on the host
__global__ void log_prob_kernel(DeviceRows rows, TokenQuery* queries, const ChunkStats* stats,
                                int chunks) {
  TokenQuery& query = queries[blockIdx.x];
  const std::int32_t row = query.row;
  const RowStats whole = fold(stats + static_cast<std::int64_t>(row) * chunks, chunks);
  if (threadIdx.x == 0) {
    query.logprob = result_of(Row{rows.row(row)}, query.token, whole.lse).logprob;
    query.lse = whole.lse;
    query.likeliest = whole.best.token;
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

/// Room for so many bytes.
template <typename AnyMemory>
void reserve(const Device& device, AnyMemory& memory, std::int64_t size_bytes) {
  if (memory.size_bytes() >= size_bytes) return;
  device.synchronize("draw");  // draws that were forgotten may still use it
  memory = AnyMemory(2 * size_bytes, "draw");
}

/// A launch: at most kMaxDraws.
struct Part {
  DeviceRows rows;
  DrawList list;
  unsigned count = 0;
  unsigned filtered = 0;  // of them
  DrawOutput out;
};

DrawList list_of(std::span<const Draw> draws, std::int64_t vocab) {
  DrawList list{};
  for (std::size_t i = 0; i < draws.size(); ++i) {
    const Draw& draw = draws[i];
    list.draws[i] = {draw.row,
                     static_cast<std::int32_t>(std::min<std::int64_t>(draw.top_k, vocab)),
                     static_cast<float>(draw.temperature),
                     static_cast<float>(draw.top_p),
                     draw.min_p,
                     draw.uniform};
  }
  return list;
}

template <typename Masks>
void launch(const Part& part, const Masks& masks, std::byte* stats_memory, cudaStream_t stream) {
  auto* stats = reinterpret_cast<typename Masks::Stats*>(stats_memory);
  const int chunks = chunks_of(part.rows.vocab);
  const std::size_t shared = terms_bytes(chunks);
  const dim3 grid(static_cast<unsigned>(chunks), part.count);
  if constexpr (std::is_same_v<Masks, NoMasks>) {
    chunk_kernel<true><<<grid, kChunkThreads, 0, stream>>>(part.rows, part.list, stats);
  } else {
    masked_chunk_kernel<<<grid, kChunkThreads, 0, stream>>>(part.rows, part.list, masks, stats);
  }
  if (part.filtered > 0) {
    filtered_draw_kernel<<<part.count, kFilterThreads, shared, stream>>>(
        part.rows, part.list, masks, stats, chunks, part.out);
  }
  if (part.filtered < part.count) {
    draw_kernel<<<part.count, kChunkThreads, shared, stream>>>(part.rows, part.list, masks, stats,
                                                               chunks, part.out);
  }
  check(cudaGetLastError(), "draw");
}

}  // namespace

CudaSampler::CudaSampler(Device& device, Timeline& timeline)
    : device_(device), timeline_(timeline), kept_(kKept * 4, "sampling") {}

CudaSampler::~CudaSampler() {
  const DeviceScope here = device_.last_scope();
  for (const Results& results : results_) {
    if (results.written != nullptr) cudaEventDestroy(results.written);
  }
}

std::vector<const std::uint32_t*> CudaSampler::upload_masks(std::span<const Draw> draws,
                                                            std::int64_t vocab, Results& place) {
  const auto is_plain = [](const Draw& draw) { return draw.mask == nullptr && draw.edits.empty(); };
  if (std::ranges::all_of(draws, is_plain)) return {};
  std::vector<const std::uint32_t*> masks;
  for (const Draw& draw : draws) masks.push_back(draw.mask);
  std::ranges::sort(masks);
  masks.erase(std::ranges::unique(masks).begin(), masks.end());
  const std::int64_t stride = (vocab + 127) / 128 * 16;  // bytes, whole ones of a fetch
  const std::int64_t bytes = std::ssize(masks) * stride;
  reserve(device_, place.masks, bytes);
  reserve(device_, masks_, bytes);
  // Draws that were forgotten may still be about to read theirs.
  check(cudaEventSynchronize(place.written), "draw");
  const auto words_bytes = static_cast<std::size_t>((vocab + 31) / 32 * 4);
  for (std::size_t i = 0; i < masks.size(); ++i) {
    std::byte* to = place.masks.data() + static_cast<std::int64_t>(i) * stride;
    if (masks[i] == nullptr) {
      std::memset(to, 0xff, words_bytes);
    } else {
      std::memcpy(to, masks[i], words_bytes);
    }
  }
  FetchList list{};
  list.add(place.masks.data(), masks_.data(), bytes);
  launch_fetch(list, device_.stream());
  check(cudaGetLastError(), "draw");
  std::vector<const std::uint32_t*> out;
  for (const Draw& draw : draws) {
    const auto index = std::ranges::lower_bound(masks, draw.mask) - masks.begin();
    out.push_back(reinterpret_cast<const std::uint32_t*>(masks_.data() + index * stride));
  }
  return out;
}

std::vector<CudaSampler::HostEdits> CudaSampler::stage_edits(std::span<const Draw> draws,
                                                             Results& place) {
  std::vector<HostEdits> staged(draws.size());
  std::int64_t bytes = 0;
  for (const Draw& draw : draws) {
    bytes +=
        static_cast<std::int64_t>(draw.edits.changes.size_bytes() + draw.edits.bans.size_bytes());
  }
  if (bytes == 0) return staged;
  // (Draws that were forgotten may still be about to read theirs: see upload_masks.)
  reserve(device_, place.edits, bytes);
  std::byte* to = place.edits.data();
  const auto stage = [&]<typename T>(std::span<const T> from) {
    auto* const at = reinterpret_cast<T*>(to);
    std::ranges::copy(from, at);
    to += from.size_bytes();
    return at;
  };
  // (Changes first: both are aligned to 4 bytes.)
  for (std::size_t i = 0; i < draws.size(); ++i) {
    staged[i].changes = stage(draws[i].edits.changes);
    staged[i].bans = stage(draws[i].edits.bans);
  }
  return staged;
}

void CudaSampler::edit_rows(Tensor logits, std::span<const Draw> draws,
                            std::span<const HostEdits> staged, const float** edited) {
  EditList list{};
  unsigned count = 0;
  for (std::size_t i = 0; i < draws.size(); ++i) {
    const LogitEdits& edits = draws[i].edits;
    if (edits.empty()) continue;
    float* const to = reinterpret_cast<float*>(edited_.data()) + count * logits.cols;
    edited[i] = to;
    list.rows[count++] = {logits.data + draws[i].row * logits.stride,
                          to,
                          staged[i].changes,
                          staged[i].bans,
                          static_cast<std::int32_t>(edits.changes.size()),
                          static_cast<std::int32_t>(edits.bans.size())};
  }
  if (count == 0) return;
  edit_kernel<<<count, kFilterThreads, 0, device_.stream()>>>(
      list, static_cast<std::int32_t>(logits.cols));
  check(cudaGetLastError(), "draw");
}

void CudaSampler::begin_draw(Tensor logits, std::span<const Draw> draws) {
  const DeviceScope here = device_.scope();
  if (draws.empty()) return;
  if (begun_ == kBegun) throw Error("begin_draw: 2 draws are begun, expected fewer");
  for (const Draw& draw : draws) check_range("draw", "row", draw.row, logits.rows);
  Results& place = results_[next_];
  if (place.written == nullptr) {
    check(cudaEventCreateWithFlags(&place.written, cudaEventDisableTiming), "draw");
  }
  for (const Draw& draw : draws) {
    for (const LogitChange& change : draw.edits.changes) {
      check_range("draw", "token", change.token, logits.cols);
    }
    for (const std::int32_t token : draw.edits.bans) {
      check_range("draw", "token", token, logits.cols);
    }
  }
  const std::vector<const std::uint32_t*> masks = upload_masks(draws, logits.cols, place);
  const std::vector<HostEdits> edits = stage_edits(draws, place);
  const auto has_edits = [](const Draw& draw) { return !draw.edits.empty(); };
  const std::int64_t edited_rows =
      std::min<std::int64_t>(kMaxDraws, std::ranges::count_if(draws, has_edits));
  reserve(device_, edited_, edited_rows * logits.cols * std::int64_t{sizeof(float)});
  const std::int64_t stats_bytes =
      chunks_of(logits.cols) *
      static_cast<std::int64_t>(masks.empty() ? sizeof(ChunkStats) : sizeof(MaskedChunkStats));
  reserve(device_, stats_, std::ssize(draws) * stats_bytes);
  reserve(device_, place.host, std::ssize(draws) * std::int64_t{sizeof(DrawResult)});
  auto* results = reinterpret_cast<DrawResult*>(place.host.data());
  auto* tokens = reinterpret_cast<std::int32_t*>(kept_.data());
  for (std::size_t begin = 0; begin < draws.size(); begin += kMaxDraws) {
    const std::size_t count = std::min<std::size_t>(kMaxDraws, draws.size() - begin);
    Part part{.rows = {logits.data, logits.stride, static_cast<std::int32_t>(logits.cols)},
              .list = list_of(draws.subspan(begin, count), logits.cols),
              .count = static_cast<unsigned>(count),
              .out = {results + begin, tokens + begin, kKept - static_cast<std::int32_t>(begin)}};
    for (unsigned i = 0; i < part.count; ++i) part.filtered += part.list.draws[i].filtered();
    std::byte* stats = stats_.data() + static_cast<std::int64_t>(begin) * stats_bytes;
    if (masks.empty()) {
      launch(part, NoMasks{}, stats, device_.stream());
    } else {
      MaskList list{};
      std::copy_n(masks.begin() + static_cast<std::ptrdiff_t>(begin), count, list.masks);
      edit_rows(logits, draws.subspan(begin, count), std::span(edits).subspan(begin, count),
                list.edited);
      launch(part, list, stats, device_.stream());
    }
  }
  copy_rows(logits, draws, place);
  timeline_.draws_end();
  check(cudaEventRecord(place.written, device_.stream()), "draw");
  next_ = (next_ + 1) % kBegun;
  ++begun_;
}

void CudaSampler::copy_rows(Tensor logits, std::span<const Draw> draws, Results& place) {
  const auto row_bytes = logits.cols * std::int64_t{sizeof(float)};
  place.vocab = logits.cols;
  reserve(device_, place.rows, std::ranges::count_if(draws, &Draw::wants_row) * row_bytes);
  std::byte* to = place.rows.data();
  for (const Draw& draw : draws) {
    if (!draw.wants_row) continue;
    check(cudaMemcpyAsync(to, logits.data + draw.row * logits.stride,
                          static_cast<std::size_t>(row_bytes), cudaMemcpyDeviceToHost,
                          device_.stream()),
          "draw");
    to += row_bytes;
  }
}

void CudaSampler::finish_draw(std::span<Draw> draws) {
  const DeviceScope here = device_.scope();
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
    draws[i].lse = results[i].lse;
  }
  const auto* row = reinterpret_cast<const float*>(place.rows.data());
  for (const Draw& draw : draws) {
    if (!draw.wants_row) continue;
    if (!draw.values.empty()) std::copy_n(row, place.vocab, draw.values.begin());
    row += place.vocab;
  }
}

void CudaSampler::forget_draws() {
  begun_ = 0;
  timeline_.forget();
}

void CudaSampler::log_probs(Tensor logits, std::span<TokenQuery> queries) {
  const DeviceScope here = device_.scope();
  if (queries.empty()) return;
  for (const TokenQuery& query : queries) {
    check_range("log_probs", "row", query.row, logits.rows);
    check_range("log_probs", "token", query.token, logits.cols);
  }
  const int chunks = chunks_of(logits.cols);
  const auto bytes = static_cast<std::int64_t>(queries.size_bytes());
  reserve(device_, stats_, logits.rows * chunks * std::int64_t{sizeof(ChunkStats)});
  if (queries_.size_bytes() < bytes) queries_ = HostMemory(bytes, "log_probs");
  auto* stats = reinterpret_cast<ChunkStats*>(stats_.data());
  auto* on_host = reinterpret_cast<TokenQuery*>(queries_.data());
  std::copy(queries.begin(), queries.end(), on_host);
  const DeviceRows rows{logits.data, logits.stride, static_cast<std::int32_t>(logits.cols)};
  const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(logits.rows));
  chunk_kernel<false><<<grid, kChunkThreads, 0, device_.stream()>>>(rows, DrawList{}, stats);
  log_prob_kernel<<<static_cast<unsigned>(queries.size()), 32, terms_bytes(chunks),
                    device_.stream()>>>(rows, on_host, stats, chunks);
  check(cudaGetLastError(), "log_probs");
  device_.synchronize("log_probs");
  std::copy_n(on_host, queries.size(), queries.begin());
}

}  // namespace dendrite::cuda
