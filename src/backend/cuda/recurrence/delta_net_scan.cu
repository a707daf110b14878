// The states of a gated delta network along runs, piece by piece, from what delta_net_pieces.cu
// found of each: to the bit what delta_net.cu computes. A thread block has 8 columns of all value
// heads of a key head, so that all of them meet the same keys. Keys and queries meet the state as a
// product of matrices, by four threads an output, each with every fourth row; then rows are solved
// one after the other, a thread a column; then the state goes behind the chunk, of which each
// thread keeps eight rows and some columns in registers. Blocks are small so that two share a
// multiprocessor: one solves while the other multiplies. Floor: 3.1 key_dim * value_dim fused
// multiply-adds a row and head. A float of shared memory must serve four of them to keep up with
// that; tiles of 8 x 6 serve 3.4 (three value heads a key head).
#include "backend/cuda/base/hopper.cuh"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/recurrence/delta_net.h"
#include "backend/cuda/recurrence/delta_net_columns.cuh"

namespace dendrite::cuda {
namespace {

constexpr int kScanThreads = 64;
constexpr int kScanColumns = 8;  // of a head and thread block
constexpr int kGroups = kScanThreads / kRows;

/// What one piece brings.
template <int kHeads>
struct Stage {
  alignas(16) PieceRecord record;
  PieceHead heads[kHeads];
  alignas(16) float values[kRows][kHeads * kScanColumns];
  std::uint64_t there;  // a barrier, of record and heads
};

template <int kHeads>
struct Memory {
  // Rows beside each other begin in other banks.
  static constexpr int kStateRow = kHeads > 2 ? 48 : kHeads* kScanColumns;

  Stage<kHeads> stages[2];
  alignas(16) float state[kPieceKeyDim][kStateRow];
  alignas(16) float met[2][kRows][kHeads * kScanColumns];  // by keys and by queries
  alignas(16) float writes[kRows][kHeads * kScanColumns];  // by place in the chunk
  alignas(16) float behind[kRows][kHeads * kScanColumns];  // what is left of them behind it
};

template <int kHeads>
class Scan {
 public:
  using Of = Columns<kHeads, kScanColumns, kGroups>;
  static constexpr auto kRecordBytes = static_cast<int>(piece_bytes(kHeads));

  __device__ Scan(const DeltaNetArguments& args, const PieceRun& of, Memory<kHeads>& memory)
      : a_(args),
        run_(of.run),
        pieces_((of.run.known + of.run.row_end - of.run.row_begin + kRows - 1) / kRows),
        s_(memory),
        thread_(static_cast<int>(threadIdx.x)),
        part_(thread_ % 32 / kLanes),
        row_(thread_ / kGroups),
        group_(thread_ % kGroups),
        key_head_(static_cast<int>(blockIdx.y)),
        first_column_(static_cast<int>(blockIdx.x) * kScanColumns),
        records_(a_.cut.records +
                 (of.first_piece * static_cast<std::int64_t>(a_.key_heads) + key_head_) *
                     kRecordBytes) {
#pragma unroll
    for (int r = 0; r < Of::kRuns; ++r) {
      heads_[r] = Of::head(group_, r);
      values_[r] = value(Of::at(group_, 4 * r));
    }
  }

  __device__ void go() {
    begin_barriers();
    load_state();
    wait_for_earlier();  // what is not of this pass needs no wait
    __syncthreads();
    if (pieces_ == 0) return;
    begin(0);
    load_known();
    for (int index = 0; index < pieces_; ++index) {
      await(index);
      if (index + 1 < pieces_) begin(index + 1);
      piece(Piece::of(run_, index), s_.stages[index % 2]);
    }
  }

 private:
  __device__ int head(int column) const {
    return key_head_ * kHeads + column / kScanColumns;
  }
  /// Of all values of a row.
  __device__ int value(int column) const {
    return head(column) * a_.value_dim + first_column_ + column % kScanColumns;
  }
  /// Of a row of the piece.
  __device__ float* values_of(const Piece& piece, int t) const {
    return a_.values + static_cast<std::int64_t>(run_.row_begin + piece.first + t) *
                           (a_.value_heads * a_.value_dim);
  }
  __device__ float* writes_of(int slot) const {
    return a_.journals + slot * a_.journal_stride + a_.key_heads * kPieceKeyDim;
  }
  /// The thread's row number r of the state. (Threads of a warp have rows beside each other, which
  /// begin in other banks.)
  __device__ int state_row(int r) const {
    return r * kRows + row_;
  }
  __device__ auto anchored(int slot, int row) const {
    float* const from = a_.anchors + slot * a_.anchor_stride + first_column_;
    return [this, from, row](int column) {
      return from + (static_cast<std::int64_t>(head(column)) * kPieceKeyDim + row) * a_.value_dim +
             column % kScanColumns;
    };
  }

  __device__ void begin_barriers() const {
#if __CUDA_ARCH__ >= 900
    if (thread_ == 0) {
      init_barrier(shared_address(&s_.stages[0].there), 1);
      init_barrier(shared_address(&s_.stages[1].there), 1);
      publish_barriers();
    }
#endif
  }

  __device__ void load_state() {
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
#pragma unroll
      for (float& value : state_[r]) value = 0;
      if (run_.anchor >= 0) Of::load(anchored(run_.anchor, state_row(r)), group_, state_[r]);
      Of::store_row(s_.state[state_row(r)], group_, state_[r]);
    }
  }
  /// Where values of the first piece would be.
  __device__ void load_known() const {
    for (int i = thread_; i < run_.known * Of::kAll; i += kScanThreads) {
      const int slot = a_.cut.known[run_.known_begin + i / Of::kAll];
      s_.stages[0].values[i / Of::kAll][i % Of::kAll] = writes_of(slot)[value(i % Of::kAll)];
    }
  }

  /// A piece comes to its stage, in the background.
  __device__ void begin(int index) const {
    Stage<kHeads>& stage = s_.stages[index % 2];
    const std::byte* const from =
        records_ + index * static_cast<std::int64_t>(a_.key_heads) * kRecordBytes;
#if __CUDA_ARCH__ >= 900
    if (thread_ == 0) {
      const std::uint32_t barrier = shared_address(&stage.there);
      arrive_for_bytes(barrier, kRecordBytes);
      copy_bytes(shared_address(&stage.record), from, kRecordBytes, barrier);
    }
#else
    for (int at = thread_ * 16; at < kRecordBytes; at += kScanThreads * 16) {
      copy_async(shared_address(&stage.record) + at, from + at, true);
    }
#endif
    const Piece piece = Piece::of(run_, index);
    const int t = row_ - piece.place;
    if (t >= 0 && t < piece.count) {
      const float* const values = values_of(piece, t);
      float* const to = stage.values[row_];
#pragma unroll
      for (int r = 0; r < Of::kRuns; ++r) {
        float* const place = to + Of::at(group_, 4 * r);
        if (Of::width(r) == 4) {
          copy_async(reinterpret_cast<float4*>(place),
                     reinterpret_cast<const float4*>(values + values_[r]));
        } else {
          copy_async(reinterpret_cast<float2*>(place),
                     reinterpret_cast<const float2*>(values + values_[r]));
        }
      }
    }
    commit_copies();
  }
  __device__ void await(int index) const {
    wait_copies<0>();
#if __CUDA_ARCH__ >= 900
    wait_barrier(shared_address(&s_.stages[index % 2].there), index / 2 % 2);
#endif
    __syncthreads();
  }

  __device__ void piece(const Piece& piece, const Stage<kHeads>& stage) {
    meet(stage);
    __syncthreads();
    if (thread_ < Of::kAll) solve(piece, stage);
    __syncthreads();
    store_rows(piece, stage);
    if (!piece.ends_chunk()) return;
    fold(stage);
    if (stage.record.anchor >= 0) store_anchor(stage.record.anchor);
  }

  /// Keys, then queries, on the state: a warp has either, a half of each row's threads eight.
  __device__ void meet(const Stage<kHeads>& stage) const {
    const int first = row_ % 2 * kTile;
    const int own = first + Of::own_row(part_);
    const bool of_keys = thread_ < 32;
    float met[2][Of::kCount];
    Of::meet(s_.state, of_keys ? stage.record.keys : stage.record.queries, first, part_, group_,
             met);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      float left[Of::kRuns];
#pragma unroll
      for (int r = 0; r < Of::kRuns; ++r) left[r] = stage.heads[heads_[r]].left[own + t];
#pragma unroll
      for (int c = 0; c < Of::kCount; ++c) met[t][c] = __fmul_rn(left[c / 4], met[t][c]);
      Of::store_row(s_.met[of_keys ? 0 : 1][own + t], group_, met[t]);
    }
  }

  /// What rows write to a column. Each has its sum over those before it in their order.
  __device__ void solve(const Piece& piece, const Stage<kHeads>& stage) const {
    const int column = thread_;
    const PieceHead& head = stage.heads[column / kScanColumns];
    float writes[kRows];  // of rows not solved yet: what is known of their value
    float values[kRows];
    float writing[kRows];
    float behind[kRows];
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      writes[t] = s_.met[0][t][column];
      values[t] = stage.values[t][column];
    }
#pragma unroll
    for (int t = 0; t < kRows; t += 4) {
      load_four(head.writing + t, writing + t);
      load_four(head.behind + t, behind + t);
    }
    // (Nothing is stored meanwhile, so that all may be loaded early.)
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      float on_keys[kRows];
#pragma unroll
      for (int t = j / 4 * 4; t < kRows; t += 4) load_four(&head.on_keys[j][t], on_keys + t);
      writes[j] = j < piece.place ? values[j] : writing[j] * (values[j] - writes[j]);
#pragma unroll
      for (int t = j + 1; t < kRows; ++t) writes[t] = fmaf(on_keys[t], writes[j], writes[t]);
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      s_.writes[j][column] = writes[j];
      s_.behind[j][column] = writes[j] * behind[j];
    }
  }

  /// What comes out, not normed yet, and what journals keep of writes. A thread has a row.
  __device__ void store_rows(const Piece& piece, const Stage<kHeads>& stage) const {
    const int t = row_;
    float out[Of::kCount];
    Of::load_row(s_.met[1][t], group_, out);
#pragma unroll 1
    for (int first = 0; first < (thread_ / 32 + 1) * 8; first += 4) {
      float on_queries[Of::kRuns][4];
#pragma unroll
      for (int r = 0; r < Of::kRuns; ++r) {
        load_four(&stage.heads[heads_[r]].on_queries[t][first], on_queries[r]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float writes[Of::kCount];
        Of::load_row(s_.writes[first + j], group_, writes);
        if (first + j > t) continue;
#pragma unroll
        for (int c = 0; c < Of::kCount; ++c) out[c] = fmaf(on_queries[c / 4][j], writes[c], out[c]);
      }
    }
    if (!piece.has(t)) return;
    float* const to = values_of(piece, t - piece.place);
    Of::store([&](int column) { return to + value(column); }, group_, out);
    const std::int32_t slot = stage.record.journals[t];
    if (slot < 0) return;
#pragma unroll
    for (int r = 0; r < Of::kRuns; ++r) {
      for (int i = 0; i < Of::width(r); ++i) {
        writes_of(slot)[values_[r] + i] = s_.writes[t][Of::at(group_, 4 * r) + i];
      }
    }
  }

  /// The state goes behind the chunk.
  __device__ void fold(const Stage<kHeads>& stage) {
    float left[Of::kRuns];
#pragma unroll
    for (int r = 0; r < Of::kRuns; ++r) left[r] = stage.record.all_left[heads_[r]];
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
#pragma unroll
      for (int c = 0; c < Of::kCount; ++c) state_[r][c] *= left[c / 4];
    }
#pragma unroll
    for (int first = 0; first < kRows; first += 4) {
      float keys[kTile][4];
#pragma unroll
      for (int r = 0; r < kTile; ++r) {
        load_four(&stage.record.keys[state_row(r)][first], keys[r]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float writes[Of::kCount];
        Of::load_row(s_.behind[first + j], group_, writes);
#pragma unroll
        for (int r = 0; r < kTile; ++r) {
#pragma unroll
          for (int c = 0; c < Of::kCount; ++c) {
            state_[r][c] = fmaf(keys[r][j], writes[c], state_[r][c]);
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kTile; ++r) Of::store_row(s_.state[state_row(r)], group_, state_[r]);
  }

  __device__ void store_anchor(int slot) const {
#pragma unroll
    for (int r = 0; r < kTile; ++r) Of::store(anchored(slot, state_row(r)), group_, state_[r]);
  }

  const DeltaNetArguments& a_;
  const RecurrencePlan::Run run_;
  const int pieces_;
  Memory<kHeads>& s_;
  const int thread_;
  const int part_;   // of rows of the state, when they are met
  const int row_;    // of a chunk, which the thread has, and of the state each such
  const int group_;  // of columns
  const int key_head_;
  const int first_column_;          // of each head
  const std::byte* const records_;  // of the run's pieces
  int heads_[Of::kRuns];            // of the thread's columns,
  int values_[Of::kRuns];           // and where they are among all values of a row
  float state_[kTile][Of::kCount];
};

/// grid (value_dim / kScanColumns, key_heads, runs)
template <int kHeads>
__global__ void __launch_bounds__(kScanThreads, 3)
    scan_kernel(const __grid_constant__ DeltaNetArguments args, std::int32_t level) {
  extern __shared__ __align__(16) std::byte memory[];
  const PieceRun& of = args.cut.runs[blockIdx.z];
  let_next_begin();
  if (of.level != level) return wait_for_earlier();
  if (of.anchor_is_new) wait_for_earlier();
  Scan<kHeads>(args, of, *reinterpret_cast<Memory<kHeads>*>(memory)).go();
}

template <int kHeads>
void launch(const DeltaNetArguments& args, std::int32_t level, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.value_dim / kScanColumns),
                  static_cast<unsigned>(args.key_heads), static_cast<unsigned>(args.cut.alone));
  constexpr auto kBytes = sizeof(Memory<kHeads>);
  cudaFuncSetAttribute(scan_kernel<kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  launch_early(scan_kernel<kHeads>, grid, kScanThreads, kBytes, stream, args, level);
}

}  // namespace

std::int64_t delta_net_scan_shared_bytes(const DeltaNetArguments& args) {
  return with_heads(args, [](auto heads) { return std::int64_t{sizeof(Memory<heads()>)}; });
}

void launch_delta_net_scan(const DeltaNetArguments& args, std::int32_t level, cudaStream_t stream) {
  with_heads(args, [&](auto heads) { launch<heads()>(args, level, stream); });
}

}  // namespace dendrite::cuda
