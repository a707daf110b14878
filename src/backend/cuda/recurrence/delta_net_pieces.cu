// What a piece of a run gives without the state before it: convolutions, norms, gates, and keys on
// keys and queries, to the bit as delta_net.cu has them. All pieces of a pass at once; a thread
// block has a key head of one, or some channels of its values.
// Floor: what goes in is read once, values and records are written once.
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/recurrence/delta_net.h"
#include "backend/cuda/recurrence/delta_net_pieces.cuh"
#include "backend/cuda/recurrence/delta_net_shared.cuh"

namespace dendrite::cuda {
namespace {

constexpr int kPieceThreads = 2 * kPieceKeyDim;
constexpr int kPieceWarps = kPieceThreads / 32;
constexpr int kHalf = kRows / 2;
constexpr int kDotThreads = 2 * kHalf * kHalf;  // keys or queries, two rows on two others
constexpr int kBefore = kPieceTaps - 1;         // rows that the first one's convolution reads
constexpr int kKeyRow = kPieceKeyDim + 4;       // rows begin in other banks

/// A piece as a thread block sees it.
class OfPiece {
 public:
  __device__ OfPiece(const DeltaNetArguments& args, const LeveledRun& of, int piece)
      : a_(args),
        run_(of.run),
        index_(piece - of.first_piece),
        piece_(run_, index_),
        thread_(static_cast<int>(threadIdx.x)),
        keys_(args.key_heads * kPieceKeyDim) {}

 protected:
  __device__ float* journal(int slot) const { return a_.journals + slot * a_.journal_stride; }
  __device__ const float* known(int place) const {
    return journal(a_.known[run_.known_begin + place]);
  }
  __device__ int value_columns() const { return a_.value_heads * a_.value_dim; }
  // Where the parts of a journal begin.
  __device__ int decayed_at() const { return keys_ + value_columns(); }
  __device__ int convolved_at() const { return decayed_at() + a_.value_heads; }

  __device__ const float* first_row() const {
    return a_.in + (run_.row_begin + piece_.first) * a_.in_stride;
  }
  /// A channel of the piece's rows, and of those before it.
  __device__ void load_rows(int channel, float (&to)[kBefore + kRows]) const {
#pragma unroll
    for (int back = kBefore; back > 0; --back) {
      to[kBefore - back] =
          load(convolved_row(a_, run_, a_.known + run_.known_begin, piece_.first - back), channel);
    }
    const float* const rows = first_row() + channel;
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      to[kBefore + t] = t < piece_.count ? rows[t * a_.in_stride] : 0.0f;
    }
  }
  /// The convolution of row t of them.
  __device__ static float convolved(const float (&weights)[kPieceTaps],
                                    const float (&in)[kBefore + kRows], int t) {
    float sum = 0;
#pragma unroll
    for (int tap = 0; tap < kPieceTaps; ++tap) sum = fmaf(weights[tap], in[t + tap], sum);
    return silu(sum);
  }

  /// Calls put(t, journal) of each row that has one; by whole warps.
  template <typename Put>
  __device__ void each_journal(const Put& put) const {
    const int lane = thread_ % 32;
    const int mine =
        lane < piece_.count ? a_.row_journals[run_.row_begin + piece_.first + lane] : -1;
    const unsigned kept = __ballot_sync(0xffffffffu, mine >= 0);
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      if ((kept >> t & 1) != 0) put(t, journal(__shfl_sync(0xffffffffu, mine, t)));
    }
  }
  /// Where the state behind the piece goes, or -1.
  __device__ std::int32_t anchor_slot() const {
    return piece_.ends_chunk() ? a_.new_anchors[run_.anchors_begin + index_] : -1;
  }
  /// An anchor keeps what was convolved last before it.
  __device__ void store_tail(int channel, const float (&in)[kBefore + kRows]) const {
    const std::int32_t slot = anchor_slot();
    if (slot < 0) return;
    float* const tail = a_.anchors + slot * a_.anchor_stride +
                        static_cast<std::int64_t>(value_columns()) * kPieceKeyDim + channel;
#pragma unroll
    for (int t = 0; t <= kRows; ++t) {
      if (t != piece_.count) continue;
#pragma unroll
      for (int i = 0; i < kBefore; ++i) tail[i * (2 * keys_ + value_columns())] = in[t + i];
    }
  }

  const DeltaNetArguments& a_;
  const RecurrencePlan::Run run_;
  const int index_;
  const Piece piece_;
  const int thread_;
  const int keys_;
};

/// Channels of values, a thread each. They wait where what comes out will be.
class Values : public OfPiece {
 public:
  using OfPiece::OfPiece;

  __device__ void go(int block) const {
    // (Behind the last one threads do as it does, since warps stay whole.)
    const int value = min(block * kPieceThreads + thread_, value_columns() - 1);
    const int channel = 2 * keys_ + value;
    float weights[kPieceTaps];
    load_four(a_.conv + channel * kPieceTaps, weights);
    wait_for_earlier();
    float in[kBefore + kRows];
    load_rows(channel, in);
    const std::int64_t columns = value_columns();
    float* const out = a_.values + (run_.row_begin + piece_.first) * columns + value;
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      if (t % 4 == 0 && t >= piece_.count) break;
      const float mine = convolved(weights, in, t);
      if (t < piece_.count) out[t * columns] = mine;
    }
    each_journal([&](int t, float* to) { to[convolved_at() + channel] = in[kBefore + t]; });
    store_tail(channel, in);
  }
};

struct Memory {
  alignas(16) float keys[kRows][kKeyRow];  // by place in the chunk
  alignas(16) float queries[kRows][kKeyRow];
  float on_keys[kRows][kRows + 1];  // [t][j], before anything decays
  float on_queries[kRows][kRows + 1];
  alignas(16) float decayed[kMostPieceHeads][kRows];  // logarithms since the chunk began
  float writing[kMostPieceHeads][kRows];
};

/// A key head: a thread has a channel of its queries or keys.
class Keys : public OfPiece {
 public:
  __device__ Keys(const DeltaNetArguments& args, const LeveledRun& of, int piece, Memory& memory)
      : OfPiece(args, of, piece),
        s_(memory),
        key_head_(static_cast<int>(blockIdx.x)),
        heads_(args.value_heads / args.key_heads),
        channel_((thread_ < kPieceKeyDim ? 0 : keys_ - kPieceKeyDim) + key_head_ * kPieceKeyDim +
                 thread_),
        record_(*reinterpret_cast<PieceRecord*>(
            args.pieces + (piece * static_cast<std::int64_t>(args.key_heads) + key_head_) *
                              piece_bytes(heads_))) {}

  __device__ void go() {
    float weights[kPieceTaps];
    load_four(a_.conv + channel_ * kPieceTaps, weights);
    Gates mine = gates_of_head();
    wait_for_earlier();
    load_gates(mine);
    convolve(weights);
    gates(mine);
    __syncthreads();
    normalise();
    sum_decays();
    __syncthreads();
    dots();
    store_journals();
    __syncthreads();
    store_record();
  }

 private:
  __device__ int first_head() const { return key_head_ * heads_; }

  /// A place's of a value head.
  struct Gates {
    float writing = 0;
    float decay = 0;  // where the place is of a row, or the whole logarithm
    float bias = 0;
    float factor = 0;
  };
  __device__ bool has_gates() const { return thread_ < heads_ * kRows; }
  __device__ int gate_head() const { return first_head() + thread_ / kRows; }
  __device__ Gates gates_of_head() const {
    Gates out;
    if (!has_gates()) return out;
    out.bias = a_.dt_bias[gate_head()];
    out.factor = a_.decay[gate_head()];
    return out;
  }
  __device__ void load_gates(Gates& to) const {
    if (!has_gates()) return;
    const int place = thread_ % kRows;
    if (place < piece_.place) {
      to.decay = known(place)[decayed_at() + gate_head()];
    } else if (piece_.has(place)) {
      const float* const row = first_row() + (place - piece_.place) * a_.in_stride;
      to.writing = row[a_.writes_at + gate_head()];
      to.decay = row[a_.decays_at + gate_head()];
    }
  }
  __device__ void gates(const Gates& mine) const {
    if (!has_gates()) return;
    const int place = thread_ % kRows;
    const float logarithm = fmaxf(kLeastDecay, -(mine.factor * softplus(mine.decay + mine.bias)));
    s_.writing[thread_ / kRows][place] = sigmoid(mine.writing);
    s_.decayed[thread_ / kRows][place] = piece_.has(place) ? logarithm : mine.decay;
  }

  __device__ bool is_key() const { return thread_ >= kPieceKeyDim; }
  __device__ void convolve(const float (&weights)[kPieceTaps]) {
    load_rows(channel_, in_);
    float* const to = &(is_key() ? s_.keys : s_.queries)[0][thread_ % kPieceKeyDim];
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      if (t % 4 == 0 && t >= piece_.count) break;
      const float mine = convolved(weights, in_, t);
      if (t < piece_.count) to[(piece_.place + t) * kKeyRow] = mine;
    }
    for (int place = 0; place < piece_.place; ++place) {
      to[place * kKeyRow] = is_key() ? known(place)[channel_ - keys_] : 0.0f;
    }
    for (int place = piece_.place + piece_.count; place < kRows; ++place) to[place * kKeyRow] = 0;
  }

  __device__ void sum_decays() const {
    if (thread_ >= heads_) return;
    float decayed[kRows];
#pragma unroll
    for (int t = 0; t < kRows; t += 4) load_four(&s_.decayed[thread_][t], decayed + t);
    float sum = 0;
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      sum = t < piece_.place ? decayed[t] : sum + decayed[t];
      s_.decayed[thread_][t] = sum;
    }
  }

  /// A warp has some vectors, whose sums come side by side, and a lane each one's factor.
  __device__ void normalise() const {
    constexpr int kOwn = 2 * kRows / kPieceWarps;
    constexpr int kEach = kPieceKeyDim / 32;
    const int lane = thread_ % 32;
    float values[kOwn][kEach];
    float sums[kOwn];
    float mine = 0;
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const float* const vector = vector_of(n);
      sums[n] = 0;
#pragma unroll
      for (int c = 0; c < kEach; ++c) {
        values[n][c] = vector[c * 32 + lane];
        sums[n] = fmaf(values[n][c], values[n][c], sums[n]);
      }
      sums[n] = warp_sum(sums[n]);
      if (lane == n) mine = sums[n];
    }
    const float scale =
        is_key_vector(lane % kOwn) ? 1.0f : 1.0f / sqrtf(static_cast<float>(kPieceKeyDim));
    const float factor = scale / sqrtf(mine + 1e-6f);
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const float own = __shfl_sync(0xffffffffu, factor, n);
      if (!piece_.has(vector_place(n))) continue;
#pragma unroll
      for (int c = 0; c < kEach; ++c) vector_of(n)[c * 32 + lane] = values[n][c] * own;
    }
  }
  /// The warp's vector number n: the key or the query of a place.
  __device__ static bool is_key_vector(int n) {
    return n % 2 == 0;
  }
  __device__ int vector_place(int n) const {
    return thread_ / 32 * 2 + n / 2;
  }
  __device__ float* vector_of(int n) const {
    return (is_key_vector(n) ? s_.keys : s_.queries)[vector_place(n)];
  }

  /// Keys, then queries, on keys: a thread has two on two.
  __device__ void dots() const {
    if (thread_ >= kDotThreads) return;
    const int tile = thread_ % (kDotThreads / 2);
    const int t = tile / kHalf * 2;
    const int j = tile % kHalf * 2;
    if (j > t + 1) return;
    const bool of_keys = thread_ < kDotThreads / 2;
    const float* const mine = (of_keys ? s_.keys : s_.queries)[t];
    const float* const others = s_.keys[j];
    float sums[2][2] = {};
#pragma unroll 8
    for (int i = 0; i < kPieceKeyDim; i += 4) {
      float vectors[2][4];
      float before[2][4];
#pragma unroll
      for (int x = 0; x < 2; ++x) {
        load_four(mine + x * kKeyRow + i, vectors[x]);
        load_four(others + x * kKeyRow + i, before[x]);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int x = 0; x < 2; ++x) {
#pragma unroll
          for (int y = 0; y < 2; ++y) sums[x][y] = fmaf(vectors[x][n], before[y][n], sums[x][y]);
        }
      }
    }
    auto& to = of_keys ? s_.on_keys : s_.on_queries;
#pragma unroll
    for (int x = 0; x < 2; ++x) {
#pragma unroll
      for (int y = 0; y < 2; ++y) to[t + x][j + y] = sums[x][y];
    }
  }

  __device__ void store_record() const {
    const int channel = thread_ % kPieceKeyDim;
    const auto& from = is_key() ? s_.keys : s_.queries;
    auto* const to =
        reinterpret_cast<float4*>((is_key() ? record_.keys : record_.queries)[channel]);
#pragma unroll
    for (int t = 0; t < kRows; t += 4) {
      to[t / 4] = make_float4(from[t][channel], from[t + 1][channel], from[t + 2][channel],
                              from[t + 3][channel]);
    }
    if (thread_ < kRows) {
      record_.journals[thread_] =
          piece_.has(thread_)
              ? a_.row_journals[run_.row_begin + piece_.first + thread_ - piece_.place]
              : -1;
    }
    if (thread_ == kRows) record_.anchor = anchor_slot();
    // (Neighbours write beside each other.)
    const int slow = thread_ / kRows;
    const int fast = thread_ % kRows;
    for (int of = 0; of < heads_; ++of) {
      PieceHead& head = record_.heads()[of];
      const float* const decayed = s_.decayed[of];
      if (fast >= slow) {
        head.on_keys[slow][fast] = expf(decayed[fast] - decayed[slow]) * s_.on_keys[fast][slow];
      }
      if (fast <= slow) {
        head.on_queries[slow][fast] =
            expf(decayed[slow] - decayed[fast]) * s_.on_queries[slow][fast];
      }
    }
    for (int i = thread_; i < heads_ * kRows; i += kPieceThreads) {
      PieceHead& head = record_.heads()[i / kRows];
      const float* const decayed = s_.decayed[i / kRows];
      const int t = i % kRows;
      const float all = decayed[kRows - 1];
      head.left[t] = expf(decayed[t]);
      head.writing[t] = s_.writing[i / kRows][t];
      head.behind[t] = expf(all - decayed[t]);
      if (t == 0) record_.all_left[i / kRows] = expf(all);
    }
  }

  /// But for values, and what rows write, which is not known yet.
  __device__ void store_journals() const {
    each_journal([&](int t, float* to) {
      const int place = piece_.place + t;
      to[convolved_at() + channel_] = in_[kBefore + t];
      if (is_key()) to[channel_ - keys_] = s_.keys[place][thread_ - kPieceKeyDim];
      if (thread_ < heads_) to[decayed_at() + first_head() + thread_] = s_.decayed[thread_][place];
    });
    store_tail(channel_, in_);
  }

  Memory& s_;
  const int key_head_;
  const int heads_;
  const int channel_;
  PieceRecord& record_;
  float in_[kBefore + kRows];  // of the thread's channel
};

/// grid (key_heads, then of values, pieces)
__global__ void __launch_bounds__(kPieceThreads, 4)
    pieces_kernel(const __grid_constant__ DeltaNetArguments args, std::int32_t level) {
  __shared__ Memory memory;
  const int piece = static_cast<int>(blockIdx.y);
  const int run = args.piece_runs[piece];
  let_next_begin();
  if (run < 0 || args.runs[run].level != level) return wait_for_earlier();
  const int block = static_cast<int>(blockIdx.x);
  if (block < args.key_heads) {
    Keys(args, args.runs[run], piece, memory).go();
  } else {
    Values(args, args.runs[run], piece).go(block - args.key_heads);
  }
}

}  // namespace

bool fits_delta_net_pieces(const DeltaNetArguments& args) {
  return !args.by_channel && args.taps == kPieceTaps && args.key_dim == kPieceKeyDim &&
         args.value_dim % 16 == 0 && args.value_heads / args.key_heads <= kMostPieceHeads &&
         args.anchor_stride % 4 == 0;
}

std::int64_t delta_net_piece_bytes(const DeltaNetArguments& args) {
  return args.key_heads * piece_bytes(args.value_heads / args.key_heads);
}

void launch_delta_net_pieces(const DeltaNetArguments& args, std::int32_t level,
                             cudaStream_t stream) {
  const int values = (args.value_heads * args.value_dim + kPieceThreads - 1) / kPieceThreads;
  const dim3 grid(static_cast<unsigned>(args.key_heads + values),
                  static_cast<unsigned>(args.piece_count));
  launch_early(pieces_kernel, grid, kPieceThreads, 0, stream, args, level);
}

}  // namespace dendrite::cuda
