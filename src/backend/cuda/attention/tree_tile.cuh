#pragma once

#include "backend/cuda/attention/soft_cap.cuh"
#include "backend/cuda/attention/tree_rows.cuh"
#include "backend/cuda/base/mma.cuh"

// Tree attention's work on one tile by mma.sync, for four warps.
namespace dendrite::cuda {

constexpr int kTileThreads = 128;
constexpr int kBlock = static_cast<int>(kBlockTokens);
constexpr int kChunkRowBytes = kPanelDims * 2;
constexpr int kChunkBytes = kBlock * kChunkRowBytes;
constexpr int kProbabilityRowBytes = kBlock * 2;
constexpr std::uint32_t kOnes = 0x3f803f80u;  // two bf16

/// Where the four warps keep in shared memory what they tell each other.
struct TileRoom {
  std::uint32_t queries;        // rows of the tile, of whole panels each
  std::uint32_t probabilities;  // where queries are, unless they stay there
  float* maxima;                // 64
  float* groups;                // of whole panels, too
};

/// Whether queries stay in shared memory, since so wide ones do not fit into registers.
constexpr bool queries_stay(int head_dim) {
  return head_dim > 256;
}

/// One warp's part of a tile. Chunks has for the four warps, in the order that they ask:
///   next<i>()  waits for chunk i of the next block (K's chunks of 64 dims, then V's) and for all
///              four warps; the chunk stays until the warp's next done()
///   done()     this warp has read K, or V, of the block
///   meet()     waits for all four warps
///   thread()   0 to 127
/// kCaps: scores have soft caps.
template <int kDim, typename Chunks, int kM, int kN, bool kCaps>
class TileWarp : TileRows<kDim, kPanelDims / 8 / kN, kTileThreads> {
 public:
  __device__ TileWarp(const TreeAttentionArguments& args, Chunks& chunks, const TileRoom& room,
                      const TreeTile& tile, int first_head)
      : Rows(args, room.groups + Chunks::thread(),
             Chunks::thread() / 32 % kN * kOuts * 8 + Chunks::thread() % 4 * 2),
        chunks_(chunks),
        thread_(Chunks::thread()),
        queries_(room.queries),
        probabilities_(room.probabilities),
        maxima_(room.maxima),
        warp_m_(thread_ / 32 / kN),
        warp_n_(thread_ / 32 % kN),
        lane_(thread_ % 32) {
    tile_ = tile;
    load_queries(first_head);
    int seen_end = 0;
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      this->find_row(r, first_head, warp_m_ * 16 + lane_ / 4 + 8 * r);
      if (row_[r] >= 0) seen_end = max(seen_end, end_[r]);
    }
    seen_end_ = __reduce_max_sync(kAll, seen_end);
    all_seen_begin_ = __reduce_max_sync(kAll, max(low_[0], low_[1]));
    all_seen_end_ = __reduce_min_sync(kAll, min(end_[0], end_[1]));
  }

  __device__ void run() {
    this->begin_tokens();
    for (int block = tile_.begin; block < tile_.end; block += kBlock) {
      add_block(block);
      this->end_block(block + kBlock);
    }
  }

 private:
  using Rows = TileRows<kDim, kPanelDims / 8 / kN, kTileThreads>;
  using Rows::args_;
  using Rows::end_;
  using Rows::low_;
  using Rows::row_;
  using Rows::sum_;
  using Rows::tile_;
  using Rows::top_;
  using Rows::values_;
  static constexpr unsigned kAll = 0xffffffffu;
  static constexpr int kChunks = panels_of(kDim);    // of K or V of a block
  static constexpr int kScores = kBlock / 8 / kN;    // 8-token columns of S of this warp
  static constexpr int kOuts = kPanelDims / 8 / kN;  // 8-dim columns of a chunk of V
  static constexpr int kQueryRowBytes = kChunks * kChunkRowBytes;
  static constexpr bool kQueriesStay = queries_stay(kDim);

  __device__ void load_queries(int first_head) {
    constexpr int kPieces = kDim / 8;
    const auto heads = static_cast<int>(args_.slices.heads);
    const int packed_rows = tile_.row_count * heads;
    chunks_.meet();  // the tile before may still read probabilities
#pragma unroll 2
    for (int i = thread_; i < kM * 16 * kPieces; i += kTileThreads) {
      const int packed = i / kPieces;
      const int piece = i % kPieces;
      uint4 bits{};
      if (packed < packed_rows) {
        const float* q = args_.q.data + (tile_.row_begin + packed / heads) * args_.q.stride +
                         (first_head + packed % heads) * kDim + piece * 8;
        const float4 a = *reinterpret_cast<const float4*>(q);
        const float4 b = *reinterpret_cast<const float4*>(q + 4);
        bits = {pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w)};
      }
      const std::uint32_t target =
          queries_ + packed * kQueryRowBytes + ((piece ^ (packed % 8)) * 16);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(target), "r"(bits.x),
                   "r"(bits.y), "r"(bits.z), "r"(bits.w)
                   : "memory");
    }
    chunks_.meet();
    if constexpr (!kQueriesStay) {
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) load_query(q_[k], k);
    }
  }

  /// Of this warp's rows, dims [16 k, 16 k + 16).
  __device__ void load_query(std::uint32_t (&q)[4], int k) const {
    const int row = warp_m_ * 16 + lane_ % 16;
    load_matrices(q, queries_ + row * kQueryRowBytes + (((2 * k + lane_ / 16) ^ (row % 8)) * 16));
  }

  __device__ void add_block(int block) {
    const int limit = min(seen_end_ - block, kBlock);  // of tokens that rows of this warp see
    float scores[kScores][4] = {};
    take_keys<0>(scores, limit);
    chunks_.done();
    if constexpr (kCaps) cap(scores);
    if (block < all_seen_begin_ || block + kBlock > all_seen_end_) mask(scores, block);
    float tops[kRowsAThread];
    find_maxima(scores, tops);
    std::uint32_t p[kBlock / 16][4];
    exponentiate(scores, tops, p);
    if constexpr (kN > 1) share_probabilities(p);
    const std::uint32_t values = chunks_.template next<kChunks>();
    if constexpr (kN > 1) load_probabilities(p);
    Fold fold[kRowsAThread];
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      fold[r] = fold_of(top_[r], tops[r]);
      top_[r] = fold[r].top;
    }
    take_values<0>(p, fold, values, limit);
    chunks_.done();
  }

  /// Chunks of K from kChunk on.
  template <int kChunk>
  __device__ void take_keys(float (&scores)[kScores][4], int limit) {
    multiply_keys<kChunk>(scores, chunks_.template next<kChunk>(), limit);
    if constexpr (kChunk + 1 < kChunks) take_keys<kChunk + 1>(scores, limit);
  }

  /// Chunks of V from kChunk on, which is at `values`.
  template <int kChunk>
  __device__ void take_values(const std::uint32_t (&p)[kBlock / 16][4],
                              const Fold (&fold)[kRowsAThread], std::uint32_t values, int limit) {
    multiply_values<kChunk>(p, fold, values, limit);
    if constexpr (kChunk + 1 < kChunks) {
      take_values<kChunk + 1>(p, fold, chunks_.template next<kChunks + kChunk + 1>(), limit);
    }
  }

  /// Adds the chunk's dims of S = Q K^T, four fragments of K at a time.
  template <int kChunk>
  __device__ void multiply_keys(float (&scores)[kScores][4], std::uint32_t chunk, int limit) {
    constexpr int kColumns = kScores / 2 < 4 ? kScores / 2 : 4;  // of 16 tokens, in a batch
    constexpr int kSteps = 4 / kColumns;                         // of 16 dims, in a batch
    constexpr int kFirst = kChunk * kPanelDims / 16;
    constexpr int kEnd = (kDim / 16 < kFirst + 4 ? kDim / 16 : kFirst + 4) - kFirst;
    const int first = warp_n_ * (kBlock / kN);
    const int row = first + lane_ % 8 + lane_ / 16 * 8;
    const std::uint32_t keys =
        chunk + row * kChunkRowBytes + (((lane_ / 8 % 2) ^ (lane_ % 8)) * 16);
#pragma unroll
    for (int batch = 0; batch < kScores / 2; batch += kColumns) {
      if (first + 16 * batch >= limit) continue;
#pragma unroll
      for (int step = 0; step < kEnd; step += kSteps) {
        std::uint32_t b[kSteps][kColumns][4];
#pragma unroll
        for (int k = 0; k < kSteps && step + k < kEnd; ++k) {
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            load_matrices(b[k][j], (keys ^ ((step + k) * 32)) + (batch + j) * 16 * kChunkRowBytes);
          }
        }
#pragma unroll
        for (int k = 0; k < kSteps && step + k < kEnd; ++k) {
          std::uint32_t stayed[4];
          if constexpr (kQueriesStay) load_query(stayed, kFirst + step + k);
          const std::uint32_t(&q)[4] =
              kQueriesStay ? stayed : q_[kQueriesStay ? 0 : kFirst + step + k];
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            multiply_add(scores[2 * (batch + j)], q, b[k][j][0], b[k][j][1]);
            multiply_add(scores[2 * (batch + j) + 1], q, b[k][j][2], b[k][j][3]);
          }
        }
      }
    }
  }

  __device__ void cap(float (&scores)[kScores][4]) const {
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[j][i] = capped(scores[j][i], args_.cap_factor);
    }
  }

  __device__ void mask(float (&scores)[kScores][4], int block) const {
    const int first = block + warp_n_ * (kBlock / kN) + lane_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = first + 8 * j + i % 2;
        if (token < low_[i / 2] || token >= end_[i / 2]) scores[j][i] = -INFINITY;
      }
    }
  }

  /// Each row's largest score in units of log2.
  __device__ void find_maxima(const float (&scores)[kScores][4], float (&tops)[kRowsAThread]) {
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      float top = -INFINITY;
#pragma unroll
      for (int j = 0; j < kScores; ++j) {
        top = fmaxf(top, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(kAll, top, 1));
      tops[r] = fmaxf(top, __shfl_xor_sync(kAll, top, 2));
    }
    if constexpr (kN > 1) {
      float* mine = maxima_ + (warp_m_ * 16 + lane_ / 4) * kN;
      if (lane_ % 4 == 0) {
        mine[warp_n_] = tops[0];
        mine[8 * kN + warp_n_] = tops[1];
      }
      chunks_.meet();
#pragma unroll
      for (int r = 0; r < kRowsAThread; ++r) {
#pragma unroll
        for (int n = 0; n < kN; ++n) tops[r] = fmaxf(tops[r], mine[8 * r * kN + n]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) tops[r] = __fmul_rn(tops[r], args_.scale_log2e);
  }

  /// Probabilities of this warp's tokens relative to the block's maxima, as fragments of P.
  __device__ void exponentiate(const float (&scores)[kScores][4], const float (&tops)[kRowsAThread],
                               std::uint32_t (&p)[kBlock / 16][4]) {
    float base[kRowsAThread];
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) base[r] = tops[r] == -INFINITY ? 0.0f : -tops[r];
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
#pragma unroll
      for (int r = 0; r < kRowsAThread; ++r) {
        p[j / 2][j % 2 * 2 + r] =
            pack_bf16(power_of_two(__fmaf_rn(scores[j][2 * r], args_.scale_log2e, base[r])),
                      power_of_two(__fmaf_rn(scores[j][2 * r + 1], args_.scale_log2e, base[r])));
      }
    }
  }

  /// P in shared memory, for the warps that have other dims of the same rows; they wait in
  /// Chunks::next.
  __device__ void share_probabilities(const std::uint32_t (&p)[kBlock / 16][4]) {
#pragma unroll
    for (int j = 0; j < kScores; ++j) {
#pragma unroll
      for (int r = 0; r < kRowsAThread; ++r) {
        const int row = warp_m_ * 16 + lane_ / 4 + 8 * r;
        const int piece = (warp_n_ * kScores + j) ^ (row % 8);
        const std::uint32_t target =
            probabilities_ + row * kProbabilityRowBytes + piece * 16 + lane_ % 4 * 4;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(target), "r"(p[j / 2][j % 2 * 2 + r])
                     : "memory");
      }
    }
  }

  __device__ void load_probabilities(std::uint32_t (&p)[kBlock / 16][4]) {
    const int row = warp_m_ * 16 + lane_ % 16;
#pragma unroll
    for (int k = 0; k < kBlock / 16; ++k) {
      load_matrices(p[k], probabilities_ + row * kProbabilityRowBytes +
                              (((2 * k + lane_ / 16) ^ (row % 8)) * 16));
    }
  }

  /// P V of the chunk's dims, and with the first chunk the sums of P (by a column of ones), folded
  /// into the run; four fragments of V at a time.
  template <int kChunk>
  __device__ void multiply_values(const std::uint32_t (&p)[kBlock / 16][4],
                                  const Fold (&fold)[kRowsAThread], std::uint32_t chunk,
                                  int limit) {
    constexpr int kColumns = kOuts / 2;   // of 16 dims
    constexpr int kSteps = 4 / kColumns;  // of 16 tokens, in a batch
    const std::uint32_t values = chunk + (lane_ % 16) * kChunkRowBytes +
                                 (((warp_n_ * kOuts + lane_ / 16) ^ (lane_ % 8)) * 16);
    float sums[4] = {};
    float outs[kOuts][4] = {};
#pragma unroll
    for (int half = 0; half < kBlock / 16; half += kBlock / 32) {
      if (16 * half >= limit) continue;
#pragma unroll
      for (int step = half; step < half + kBlock / 32; step += kSteps) {
        std::uint32_t b[kSteps][kColumns][4];
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            load_matrices_transposed(b[k][j],
                                     (values ^ (j * 32)) + (step + k) * 16 * kChunkRowBytes);
          }
        }
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          if constexpr (kChunk == 0) multiply_add(sums, p[step + k], kOnes, kOnes);
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            multiply_add(outs[2 * j], p[step + k], b[k][j][0], b[k][j][1]);
            multiply_add(outs[2 * j + 1], p[step + k], b[k][j][2], b[k][j][3]);
          }
        }
      }
    }
    if constexpr (kChunk == 0) {
#pragma unroll
      for (int r = 0; r < kRowsAThread; ++r) sum_[r] = folded(fold[r], sum_[r], sums[2 * r]);
    }
#pragma unroll
    for (int j = 0; j < kOuts; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& value = values_[4 * (kChunk * kOuts + j) + i];
        value = folded(fold[i / 2], value, outs[j][i]);
      }
    }
  }

  Chunks& chunks_;
  int thread_;
  std::uint32_t queries_;
  std::uint32_t probabilities_;
  float* maxima_;
  int warp_m_;
  int warp_n_;
  int lane_;

  std::uint32_t q_[kQueriesStay ? 1 : kDim / 16][4];
  int seen_end_ = 0;  // over the warp's rows: past this nothing is seen,
  int all_seen_begin_ = 0;
  int all_seen_end_ = 0;  // and between these all see everything
};

}  // namespace dendrite::cuda
