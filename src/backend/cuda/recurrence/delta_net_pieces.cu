// What a piece of a run gives without the state before it: convolutions, norms, gates, and keys on
// keys and queries, to the bit as delta_net.cu has them. All pieces of a pass at once; a thread
// block has a key head of one, or some channels of its values.
// Floor: what goes in is read once, values and records are written once.
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/recurrence/delta_net.h"
#include "backend/cuda/recurrence/delta_net_piece_inputs.cuh"

namespace dendrite::cuda {
namespace {

constexpr int kPieceWarps = kPieceThreads / 32;
constexpr int kHalf = kRows / 2;
constexpr int kDotThreads = 2 * kHalf * kHalf;  // keys or queries, two rows on two others
constexpr int kKeyRow = kPieceKeyDim + 4;       // rows begin in other banks

/// Channels of values, a thread each. They wait where what comes out will be.
class Values : public OfPiece {
 public:
  using OfPiece::OfPiece;

  __device__ void go(const RunPiece& of, int block) const {
    find(of);
    const int value = block * kPieceThreads + thread_;
    if (value >= value_columns()) return wait_for_earlier();
    const int channel = 2 * keys_ + value;
    float weights[kPieceTaps];
    load_four(a_.conv + channel * kPieceTaps, weights);
    wait_for_earlier();
    load_rows(piece_.place, channel);
    commit_copies();
    wait_copies<0>();
    const std::int64_t columns = value_columns();
    float* const out = a_.values + (run_.row_begin + piece_.first - piece_.place) * columns + value;
    convolve_rows(piece_.place, weights,
                  [&](int place, float convolved) { out[place * columns] = convolved; });
    each_journal([&](int t, float* to) {
      to[convolved_at() + channel] = found_.rows[kBefore + t][thread_];
    });
    store_tail(channel);
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
  __device__ Keys(const DeltaNetArguments& args, const RunPiece& of, Found& found, Memory& memory)
      : OfPiece(args, of, found),
        s_(memory),
        key_head_(static_cast<int>(blockIdx.x)),
        heads_(args.value_heads / args.key_heads),
        channel_((thread_ < kPieceKeyDim ? 0 : keys_ - kPieceKeyDim) + key_head_ * kPieceKeyDim +
                 thread_) {}

  __device__ void go(const RunPiece& of) const {
    float weights[kPieceTaps];
    load_four(a_.conv + channel_ * kPieceTaps, weights);
    Gates mine = gates_of_head();
    find(of);
    wait_for_earlier();
    load_gates(mine);
    load_keys();
    convolve(weights);
    gates(mine);
    __syncthreads();
    normalise();
    sum_decays();
    __syncthreads();
    dots();
    store_journals();
    __syncthreads();
    if (in_family_) {
      store_family_rows();
    } else {
      store_record();
    }
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
    if (has_row(place)) {
      const float* const row = row_of_place(place);
      to.writing = row[a_.writes_at + gate_head()];
      to.decay = row[a_.decays_at + gate_head()];
    } else if (place < piece_.place) {
      to.decay = known(place)[decayed_at() + gate_head()];
    }
  }
  __device__ void gates(const Gates& mine) const {
    if (!has_gates()) return;
    const int place = thread_ % kRows;
    const float logarithm = fmaxf(kLeastDecay, -(mine.factor * softplus(mine.decay + mine.bias)));
    s_.writing[thread_ / kRows][place] = sigmoid(mine.writing);
    s_.decayed[thread_ / kRows][place] = has_row(place) ? logarithm : mine.decay;
  }

  __device__ bool is_key() const { return thread_ >= kPieceKeyDim; }
  __device__ float* vector_at(int place) const {
    return &(is_key() ? s_.keys : s_.queries)[place][thread_ % kPieceKeyDim];
  }
  /// What is convolved; keys that are known, and zeros where there are none.
  __device__ void load_keys() const {
    load_rows(first_place(), channel_);
#pragma unroll 2
    for (int place = 0; place < kRows; ++place) {
      if (has_row(place)) continue;
      if (is_key() && place < piece_.place) {
        copy_async(vector_at(place), known(place) + channel_ - keys_);
      } else {
        *vector_at(place) = 0;
      }
    }
    commit_copies();
    wait_copies<0>();
  }
  __device__ void convolve(const float (&weights)[kPieceTaps]) const {
    float* const to = vector_at(0);
    convolve_rows(first_place(), weights,
                  [to](int place, float convolved) { to[place * kKeyRow] = convolved; });
  }

  /// From which on there are rows.
  __device__ int first_place() const {
    return piece_.place - known_rows_;
  }

  __device__ void sum_decays() const {
    if (thread_ >= heads_) return;
    float decayed[kRows];
#pragma unroll
    for (int t = 0; t < kRows; t += 4) load_four(&s_.decayed[thread_][t], decayed + t);
    float sum = 0;
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      sum = t < first_place() ? decayed[t] : sum + decayed[t];
      s_.decayed[thread_][t] = sum;
    }
  }

  /// A warp has some vectors, whose sums come side by side, and a lane each one's factor.
  __device__ void normalise() const {
    constexpr int kOwn = 2 * kRows / kPieceWarps;
    constexpr int kEach = kPieceKeyDim / 32;
    if (!has_row(vector_place(0)) && !has_row(vector_place(kOwn - 1))) return;
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
      if (!has_row(vector_place(n))) continue;
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

  /// Keys of the piece's rows, then queries, on keys: a thread has two on two.
  __device__ void dots() const {
    if (thread_ >= kDotThreads) return;
    const int tile = thread_ % (kDotThreads / 2);
    const int t = tile / kHalf * 2;
    const int j = tile % kHalf * 2;
    if (j > t + 1 || t + 1 < piece_.place || t >= piece_.place + piece_.count) return;
    const bool of_keys = thread_ < kDotThreads / 2;
    const float* const mine = (of_keys ? s_.keys : s_.queries)[t];
    const float* const others = s_.keys[j];
    float sums[2][2] = {};
#pragma unroll 4
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

  __device__ PieceRecord& record(int number) const {
    return record_of(a_, number, key_head_, heads_);
  }
  __device__ auto* vectors_of(PieceRecord& record) const {
    return is_key() ? record.keys : record.queries;
  }

  __device__ void store_record() const {
    PieceRecord& record = this->record(static_cast<int>(blockIdx.y));
    const int channel = thread_ % kPieceKeyDim;
    const auto& from = is_key() ? s_.keys : s_.queries;
    auto* const to = reinterpret_cast<float4*>(vectors_of(record)[channel]);
#pragma unroll
    for (int t = 0; t < kRows; t += 4) {
      to[t / 4] = make_float4(from[t][channel], from[t + 1][channel], from[t + 2][channel],
                              from[t + 3][channel]);
    }
    if (thread_ < kRows) {
      record.journals[thread_] = piece_.has(thread_) ? found_.journals[thread_ - piece_.place] : -1;
    }
    if (thread_ == kRows) record.anchor = new_anchor_;
    // (Neighbours write beside each other.)
    const int slow = thread_ / kRows;
    const int fast = thread_ % kRows;
#pragma unroll 1
    for (int of = 0; of < heads_; ++of) {
      PieceHead& head = record.heads()[of];
      const float* const decayed = s_.decayed[of];
      if (fast >= slow && piece_.has(fast)) {
        head.on_keys[slow][fast] = expf(decayed[fast] - decayed[slow]) * s_.on_keys[fast][slow];
      }
      if (fast <= slow && piece_.has(slow)) {
        head.on_queries[slow][fast] =
            expf(decayed[slow] - decayed[fast]) * s_.on_queries[slow][fast];
      }
    }
    for (int i = thread_; i < heads_ * kRows; i += kPieceThreads) {
      PieceHead& head = record.heads()[i / kRows];
      const float* const decayed = s_.decayed[i / kRows];
      const int t = i % kRows;
      const float all = decayed[kRows - 1];
      head.left[t] = expf(decayed[t]);
      head.writing[t] = s_.writing[i / kRows][t];
      head.behind[t] = expf(all - decayed[t]);
      if (t == 0) record.all_left[i / kRows] = expf(all);
    }
  }

  /// A row of a family has its vectors in a column of a record, and is beside the keys before it.
  __device__ void store_family_rows() const {
    const int channel = thread_ % kPieceKeyDim;
    const int j = thread_ % kRows;
    const float* const decayed = s_.decayed[thread_ / kRows];
#pragma unroll 1
    for (int t = 0; t < piece_.count; ++t) {
      const int place = piece_.place + t;
      const int slot = found_.slots[t] % kRows;
      PieceRecord& record = this->record(a_.cut.count + found_.slots[t] / kRows);
      vectors_of(record)[channel][slot] = *vector_at(place);
      if (!has_gates()) continue;
      PieceHead& head = record.heads()[thread_ / kRows];
      const float left = expf(decayed[place] - decayed[min(j, place)]);
      if (j < place) head.on_keys[slot][j] = left * s_.on_keys[place][j];
      if (j <= place) head.on_queries[slot][j] = left * s_.on_queries[place][j];
      if (j == 0) head.left[slot] = expf(decayed[place]);
      if (j == 1) head.writing[slot] = s_.writing[thread_ / kRows][place];
    }
  }

  /// But for values, and what rows write, which is not known yet.
  __device__ void store_journals() const {
    each_journal([&](int t, float* to) {
      const int place = piece_.place + t;
      to[convolved_at() + channel_] = found_.rows[kBefore + known_rows_ + t][thread_];
      if (is_key()) to[channel_ - keys_] = s_.keys[place][thread_ - kPieceKeyDim];
      if (thread_ < heads_) to[decayed_at() + first_head() + thread_] = s_.decayed[thread_][place];
    });
    store_tail(channel_);
  }

  Memory& s_;
  const int key_head_;
  const int heads_;
  const int channel_;
};

/// grid (key_heads, then of values, pieces)
__global__ void __launch_bounds__(kPieceThreads, 4)
    pieces_kernel(const __grid_constant__ DeltaNetArguments args, std::int32_t level) {
  __shared__ Memory memory;
  __shared__ Found found;
  const RunPiece& of = args.cut.pieces[blockIdx.y];
  let_next_begin();
  if (of.level != level) return wait_for_earlier();
  const int block = static_cast<int>(blockIdx.x);
  if (block < args.key_heads) {
    Keys(args, of, found, memory).go(of);
  } else {
    Values(args, of, found).go(of, block - args.key_heads);
  }
}

}  // namespace

bool fits_delta_net_pieces(const DeltaNetArguments& args) {
  return !args.by_channel && args.taps == kPieceTaps && args.key_dim == kPieceKeyDim &&
         args.value_dim % kHeadColumns == 0 &&
         args.value_heads / args.key_heads <= kMostPieceHeads && args.anchor_stride % 4 == 0;
}

std::int64_t delta_net_piece_bytes(const DeltaNetArguments& args) {
  return args.key_heads * piece_bytes(args.value_heads / args.key_heads);
}

void launch_delta_net_pieces(const DeltaNetArguments& args, std::int32_t level,
                             cudaStream_t stream) {
  const int values = (args.value_heads * args.value_dim + kPieceThreads - 1) / kPieceThreads;
  const dim3 grid(static_cast<unsigned>(args.key_heads + values),
                  static_cast<unsigned>(args.cut.count));
  launch_early(pieces_kernel, grid, kPieceThreads, 0, stream, args, level);
}

}  // namespace dendrite::cuda
