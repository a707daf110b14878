#pragma once

#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/recurrence/delta_net_pieces.cuh"
#include "backend/cuda/recurrence/delta_net_shared.cuh"

// A piece of a run as a thread block sees it: its rows, those before it, and where they go.
namespace dendrite::cuda {

inline constexpr int kPieceThreads = 2 * kPieceKeyDim;
inline constexpr int kBefore = kPieceTaps - 1;  // rows that the first one's convolution reads

/// Of a piece, in shared memory.
struct Found {
  float rows[kBefore + kRows][kPieceThreads];  // what is convolved, a column a thread
  // RunPiece's:
  std::int32_t known[kRows];
  std::int32_t journals[kRows];
  std::int32_t slots[kRows];
};

/// A piece as a thread block sees it.
class OfPiece {
 public:
  __device__ OfPiece(const DeltaNetArguments& args, const RunPiece& of, Found& found)
      : a_(args),
        run_(of.run),
        new_anchor_(of.new_anchor),
        in_family_(of.in_family != 0),
        known_rows_(of.known_rows),
        piece_{of.first, of.place, of.count},
        found_(found),
        thread_(static_cast<int>(threadIdx.x)),
        keys_(args.key_heads * kPieceKeyDim) {}

 protected:
  __device__ float* journal(int slot) const { return a_.journals + slot * a_.journal_stride; }
  __device__ const float* known(int place) const { return journal(found_.known[place]); }
  __device__ int value_columns() const { return a_.value_heads * a_.value_dim; }
  // Where the parts of a journal begin.
  __device__ int decayed_at() const { return keys_ + value_columns(); }
  __device__ int convolved_at() const { return decayed_at() + a_.value_heads; }

  __device__ const float* row_at(int row) const { return a_.in + row * a_.in_stride; }
  __device__ const float* first_row() const { return row_at(run_.row_begin + piece_.first); }
  /// Where the pass has rows: the piece's, and those before it that its family has.
  __device__ bool has_row(int place) const {
    return place >= piece_.place - known_rows_ && place < piece_.place + piece_.count;
  }
  /// What goes into one of these.
  __device__ const float* row_of_place(int place) const {
    return row_at(place < piece_.place ? found_.known[place]
                                       : run_.row_begin + piece_.first + place - piece_.place);
  }
  __device__ void find(const RunPiece& of) const {
    if (thread_ < kRows) {
      found_.known[thread_] = of.known[thread_];
      found_.journals[thread_] = of.journals[thread_];
      found_.slots[thread_] = of.slots[thread_];
    }
    __syncthreads();
  }

  /// The thread's channel of rows from a place on, and of those that their convolutions read
  /// before them: begins to load it.
  __device__ void load_rows(int from, int channel) const {
#pragma unroll
    for (int i = 0; i < kBefore; ++i) {
      const int place = from - kBefore + i;
      const float* const kept =
          convolved_row(a_, run_, found_.known, piece_.first + place - piece_.place);
      const bool is_known = place < piece_.place && has_row(place);
      const float* const row = is_known ? row_of_place(place) : kept;
      if (row != nullptr) {
        copy_async(&found_.rows[i][thread_], row + channel);
      } else {
        found_.rows[i][thread_] = 0;
      }
    }
    for (int place = from; place < piece_.place; ++place) {
      copy_async(&found_.rows[kBefore + place - from][thread_], row_of_place(place) + channel);
    }
    const float* row = first_row() + channel;
    float* to = &found_.rows[kBefore + piece_.place - from][thread_];
#pragma unroll 4
    for (int t = 0; t < piece_.count; ++t, row += a_.in_stride, to += kPieceThreads) {
      copy_async(to, row);
    }
  }
  /// Calls put(place, its convolution) for each of those.
  template <typename Put>
  __device__ void convolve_rows(int from, const float (&weights)[kPieceTaps],
                                const Put& put) const {
    float in[kPieceTaps];
#pragma unroll
    for (int i = 0; i < kBefore; ++i) in[i + 1] = found_.rows[i][thread_];
    const int count = piece_.place + piece_.count - from;
#pragma unroll 4
    for (int t = 0; t < count; ++t) {
      float sum = 0;
#pragma unroll
      for (int tap = 0; tap < kPieceTaps; ++tap) {
        in[tap] = tap < kBefore ? in[tap + 1] : found_.rows[kBefore + t][thread_];
        sum = fmaf(weights[tap], in[tap], sum);
      }
      put(from + t, silu(sum));
    }
  }

  /// Calls put(t, journal) of each row that has one.
  template <typename Put>
  __device__ void each_journal(const Put& put) const {
#pragma unroll 1
    for (int t = 0; t < piece_.count; ++t) {
      if (found_.journals[t] >= 0) put(t, journal(found_.journals[t]));
    }
  }
  /// An anchor keeps what was convolved last before it.
  __device__ void store_tail(int channel) const {
    if (new_anchor_ < 0) return;
    float* tail = a_.anchors + new_anchor_ * a_.anchor_stride +
                  static_cast<std::int64_t>(value_columns()) * kPieceKeyDim + channel;
#pragma unroll 1
    for (int i = 0; i < kBefore; ++i, tail += 2 * keys_ + value_columns()) {
      *tail = found_.rows[piece_.count + i][thread_];
    }
  }

  const DeltaNetArguments& a_;
  const RecurrencePlan::Run run_;
  const int new_anchor_;
  const bool in_family_;
  const int known_rows_;
  const Piece piece_;
  Found& found_;
  const int thread_;
  const int keys_;
};

}  // namespace dendrite::cuda
