// The states of a gated delta network along runs, piece by piece, from what delta_net_pieces.cu
// found of each: to the bit what delta_net.cu computes. A thread block has 16 columns of all value
// heads of a key head, so that all of them meet the same keys. Keys and queries meet the state as a
// product of matrices, by four threads an output, each with every fourth row; then rows are solved
// one after the other, a thread a column; then the state goes behind the chunk, of which each
// thread keeps eight rows and some columns in registers. Floor: 3.1 key_dim * value_dim fused
// multiply-adds a row and head. A float of shared memory must serve four of them to keep up with
// that; tiles of 8 x 6 serve 3.4 (three value heads a key head).
#include <type_traits>

#include "backend/cuda/base/hopper.cuh"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/recurrence/delta_net.h"
#include "backend/cuda/recurrence/delta_net_pieces.cuh"
#include "backend/cuda/recurrence/delta_net_shared.cuh"

namespace dendrite::cuda {
namespace {

constexpr int kTile = 8;    // rows of the state, or keys and queries, of a thread
constexpr int kGroups = 8;  // of threads that share those

/// A thread's columns among those of its block: fours and, where heads are odd, two.
template <int kHeads>
struct Columns {
  static constexpr int kAll = kHeads * kHeadColumns;
  static constexpr int kFours = kHeads / 2;
  static constexpr int kCount = 2 * kHeads;
  static constexpr int kPairsAt = kFours * 4 * kGroups;
  static constexpr int kRuns = (kHeads + 1) / 2;  // that follow each other, each of one head

  static __device__ int at(int group, int i) {
    return i < 4 * kFours ? i / 4 * 4 * kGroups + 4 * group + i % 4 : kPairsAt + 2 * group + i % 4;
  }
  static __device__ int head(int group, int i) { return at(group, i / 4 * 4) / kHeadColumns; }
  /// place(column): where it and those behind it lie.
  template <typename Place>
  static __device__ void load(const Place& place, int group, float (&to)[kCount]) {
#pragma unroll
    for (int i = 0; i < 4 * kFours; i += 4) load_four(place(at(group, i)), to + i);
    if constexpr (kHeads % 2 != 0) {
      const auto two = *reinterpret_cast<const float2*>(place(at(group, 4 * kFours)));
      to[4 * kFours] = two.x;
      to[4 * kFours + 1] = two.y;
    }
  }
  template <typename Place>
  static __device__ void store(const Place& place, int group, const float (&from)[kCount]) {
#pragma unroll
    for (int i = 0; i < 4 * kFours; i += 4) {
      *reinterpret_cast<float4*>(place(at(group, i))) =
          make_float4(from[i], from[i + 1], from[i + 2], from[i + 3]);
    }
    if constexpr (kHeads % 2 != 0) {
      *reinterpret_cast<float2*>(place(at(group, 4 * kFours))) =
          make_float2(from[4 * kFours], from[4 * kFours + 1]);
    }
  }
  /// Of a row in shared memory.
  static __device__ void load_row(const float* row, int group, float (&to)[kCount]) {
    load([row](int column) { return row + column; }, group, to);
  }
  static __device__ void store_row(float* row, int group, const float (&from)[kCount]) {
    store([row](int column) { return row + column; }, group, from);
  }
};

/// What one piece brings.
template <int kHeads>
struct Stage {
  alignas(16) PieceRecord record;
  PieceHead heads[kHeads];
  alignas(16) float values[kRows][kHeads * kHeadColumns];
  std::uint64_t there;  // a barrier, of record and heads
};

template <int kHeads>
struct Memory {
  Stage<kHeads> stages[2];
  alignas(16) float state[kPieceKeyDim][kHeads * kHeadColumns];
  alignas(16) float met[2][kRows][kHeads * kHeadColumns];  // by keys and by queries
  alignas(16) float writes[kRows][kHeads * kHeadColumns];  // by place in the chunk
  alignas(16) float behind[kRows][kHeads * kHeadColumns];  // what is left of them behind it
};

template <int kHeads>
class Scan {
 public:
  using Of = Columns<kHeads>;
  static constexpr auto kRecordBytes = static_cast<int>(piece_bytes(kHeads));

  __device__ Scan(const DeltaNetArguments& args, const LeveledRun& of, Memory<kHeads>& memory)
      : a_(args),
        run_(of.run),
        pieces_((of.run.known + of.run.row_end - of.run.row_begin + kRows - 1) / kRows),
        s_(memory),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        part_(thread_ % 32 / kGroups),
        group_(thread_ % kGroups),
        key_head_(static_cast<int>(blockIdx.y)),
        first_column_(static_cast<int>(blockIdx.x) * kHeadColumns),
        records_(a_.pieces +
                 (of.first_piece * static_cast<std::int64_t>(a_.key_heads) + key_head_) *
                     kRecordBytes) {
#pragma unroll
    for (int r = 0; r < Of::kRuns; ++r) {
      heads_[r] = Of::head(group_, 4 * r);
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
      piece(Piece(run_, index), s_.stages[index % 2]);
    }
  }

 private:
  __device__ int head(int column) const {
    return key_head_ * kHeads + column / kHeadColumns;
  }
  /// Of all values of a row.
  __device__ int value(int column) const {
    return head(column) * a_.value_dim + first_column_ + column % kHeadColumns;
  }
  /// Of a row of the piece.
  __device__ float* values_of(const Piece& piece, int t) const {
    return a_.values + static_cast<std::int64_t>(run_.row_begin + piece.first + t) *
                           (a_.value_heads * a_.value_dim);
  }
  /// Where rows are handed out: the thread's place in a chunk.
  __device__ int row() const {
    return thread_ / kGroups;
  }
  __device__ float* writes_of(int slot) const {
    return a_.journals + slot * a_.journal_stride + a_.key_heads * kPieceKeyDim;
  }
  /// The thread's row number r of the state. (Threads of a warp have rows beside each other, which
  /// begin in other banks.)
  __device__ int state_row(int r) const {
    return r * (kPieceKeyDim / kTile) + warp_ * kParts + part_;
  }
  __device__ auto anchored(int slot, int row) const {
    float* const from = a_.anchors + slot * a_.anchor_stride + first_column_;
    return [this, from, row](int column) {
      return from + (static_cast<std::int64_t>(head(column)) * kPieceKeyDim + row) * a_.value_dim +
             column % kHeadColumns;
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
    for (int i = thread_; i < run_.known * Of::kAll; i += kThreads) {
      const int slot = a_.known[run_.known_begin + i / Of::kAll];
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
    for (int at = thread_ * 16; at < kRecordBytes; at += kThreads * 16) {
      copy_async(shared_address(&stage.record) + at, from + at, true);
    }
#endif
    const Piece piece(run_, index);
    const int t = row() - piece.place;
    if (t >= 0 && t < piece.count) {
      const float* const values = values_of(piece, t);
      float* const to = stage.values[row()];
#pragma unroll
      for (int r = 0; r < Of::kFours; ++r) {
        copy_async(reinterpret_cast<float4*>(to + Of::at(group_, 4 * r)),
                   reinterpret_cast<const float4*>(values + values_[r]));
      }
      if constexpr (kHeads % 2 != 0) {
        copy_async(reinterpret_cast<float2*>(to + Of::at(group_, 4 * Of::kFours)),
                   reinterpret_cast<const float2*>(values + values_[Of::kFours]));
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
    if (2 * thread_ < Of::kAll) solve(piece, stage);
    __syncthreads();
    store_rows(piece, stage);
    if (!piece.ends_chunk()) return;
    fold(stage);
    if (stage.record.anchor >= 0) store_anchor(stage.record.anchor);
  }

  /// Keys and queries on the state: a warp has eight of either, a thread these, its columns and
  /// every fourth row.
  __device__ void meet(const Stage<kHeads>& stage) const {
    float sums[kTile][Of::kCount] = {};
    const auto& vectors = warp_ < 2 ? stage.record.keys : stage.record.queries;
    const int first = warp_ % 2 * kTile;
    float state[2][Of::kCount];  // those of the next row come while this one is used
    float vector[2][kTile];
    const auto load = [&](int r) {
      const int i = r * kParts + part_;
      Of::load_row(s_.state[i], group_, state[r % 2]);
      load_four(&vectors[i][first], vector[r % 2]);
      load_four(&vectors[i][first + 4], vector[r % 2] + 4);
    };
    load(0);
#pragma unroll 8
    for (int r = 0; r < kPieceKeyDim / kParts; ++r) {
      if (r + 1 < kPieceKeyDim / kParts) load(r + 1);
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
#pragma unroll
        for (int c = 0; c < Of::kCount; ++c) {
          sums[t][c] = fmaf(state[r % 2][c], vector[r % 2][t], sums[t][c]);
        }
      }
    }
    // By halves: a thread is left with two of the eight.
    float halves[kTile / 2][Of::kCount];
    fold_half(sums, part_ % 2 != 0, kGroups, halves);
    float quarters[kTile / 4][Of::kCount];
    fold_half(halves, part_ / 2 != 0, 2 * kGroups, quarters);
    const int own = first + part_ % 2 * 4 + part_ / 2 * 2;
#pragma unroll
    for (int t = 0; t < kTile / 4; ++t) {
      float left[Of::kRuns];
#pragma unroll
      for (int r = 0; r < Of::kRuns; ++r) left[r] = stage.heads[heads_[r]].left[own + t];
#pragma unroll
      for (int c = 0; c < Of::kCount; ++c) quarters[t][c] = __fmul_rn(left[c / 4], quarters[t][c]);
      Of::store_row(s_.met[warp_ / 2][own + t], group_, quarters[t]);
    }
  }
  /// A thread and the one `width` lanes from it add what they have and keep a half each.
  template <int kHalf, int kCount>
  static __device__ void fold_half(const float (&from)[2 * kHalf][kCount], bool upper, int width,
                                   float (&to)[kHalf][kCount]) {
#pragma unroll
    for (int t = 0; t < kHalf; ++t) {
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        const float kept = upper ? from[kHalf + t][c] : from[t][c];
        const float given = upper ? from[t][c] : from[kHalf + t][c];
        to[t][c] = kept + __shfl_xor_sync(0xffffffffu, given, width);
      }
    }
  }

  /// What rows write to two columns. Each has its sum over those before it in their order.
  __device__ void solve(const Piece& piece, const Stage<kHeads>& stage) const {
    const int column = 2 * thread_;
    const PieceHead& head = stage.heads[column / kHeadColumns];
    float2 writes[kRows];  // of rows not solved yet: what is known of their value
    float2 values[kRows];
    float writing[kRows];
    float behind[kRows];
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      writes[t] = *reinterpret_cast<const float2*>(&s_.met[0][t][column]);
      values[t] = *reinterpret_cast<const float2*>(&stage.values[t][column]);
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
      const bool known = j < piece.place;
      writes[j].x = known ? values[j].x : writing[j] * (values[j].x - writes[j].x);
      writes[j].y = known ? values[j].y : writing[j] * (values[j].y - writes[j].y);
#pragma unroll
      for (int t = j + 1; t < kRows; ++t) {
        writes[t].x = fmaf(on_keys[t], writes[j].x, writes[t].x);
        writes[t].y = fmaf(on_keys[t], writes[j].y, writes[t].y);
      }
    }
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      *reinterpret_cast<float2*>(&s_.writes[j][column]) = writes[j];
      *reinterpret_cast<float2*>(&s_.behind[j][column]) =
          make_float2(writes[j].x * behind[j], writes[j].y * behind[j]);
    }
  }

  /// What comes out, not normed yet, and what journals keep of writes. A thread has a row.
  __device__ void store_rows(const Piece& piece, const Stage<kHeads>& stage) const {
    const int t = row();
    float out[Of::kCount];
    Of::load_row(s_.met[1][t], group_, out);
#pragma unroll 1
    for (int first = 0; first <= warp_ * kParts; first += 4) {
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
    const std::int32_t slot = stage.record.journals[t];
#pragma unroll
    for (int r = 0; r < Of::kRuns; ++r) {
      if (r < Of::kFours) {
        *reinterpret_cast<float4*>(to + values_[r]) =
            make_float4(out[4 * r], out[4 * r + 1], out[4 * r + 2], out[4 * r + 3]);
      } else {
        *reinterpret_cast<float2*>(to + values_[r]) = make_float2(out[4 * r], out[4 * r + 1]);
      }
      if (slot < 0) continue;
      for (int i = 0; i < min(4, Of::kCount - 4 * r); ++i) {
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
  const int warp_;
  const int part_;   // of rows of the state
  const int group_;  // of columns
  const int key_head_;
  const int first_column_;          // of each head
  const std::byte* const records_;  // of the run's pieces
  int heads_[Of::kRuns];            // of the thread's columns,
  int values_[Of::kRuns];           // and where they are among all values of a row
  float state_[kTile][Of::kCount];
};

/// grid (value_dim / kHeadColumns, key_heads, runs)
template <int kHeads>
__global__ void __launch_bounds__(kThreads, 2)
    scan_kernel(const __grid_constant__ DeltaNetArguments args, std::int32_t level) {
  extern __shared__ __align__(16) std::byte memory[];
  const LeveledRun& of = args.runs[blockIdx.z];
  let_next_begin();
  if (of.level != level) return wait_for_earlier();
  if (level > 0) wait_for_earlier();
  Scan<kHeads>(args, of, *reinterpret_cast<Memory<kHeads>*>(memory)).go();
}

template <int kHeads>
void launch(const DeltaNetArguments& args, std::int32_t level, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.value_dim / kHeadColumns),
                  static_cast<unsigned>(args.key_heads), static_cast<unsigned>(args.run_count));
  constexpr auto kBytes = sizeof(Memory<kHeads>);
  cudaFuncSetAttribute(scan_kernel<kHeads>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  launch_early(scan_kernel<kHeads>, grid, kThreads, kBytes, stream, args, level);
}

/// Calls fn(heads of a key head), which is a constant.
template <typename Fn>
auto with_heads(const DeltaNetArguments& args, const Fn& fn) {
  switch (args.value_heads / args.key_heads) {
    case 1:
      return fn(std::integral_constant<int, 1>{});
    case 2:
      return fn(std::integral_constant<int, 2>{});
    case 3:
      return fn(std::integral_constant<int, 3>{});
    default:
      return fn(std::integral_constant<int, kMostPieceHeads>{});
  }
}

}  // namespace

std::int64_t delta_net_scan_shared_bytes(const DeltaNetArguments& args) {
  return with_heads(args, [](auto heads) { return std::int64_t{sizeof(Memory<heads()>)}; });
}

void launch_delta_net_scan(const DeltaNetArguments& args, std::int32_t level, cudaStream_t stream) {
  with_heads(args, [&](auto heads) { launch<heads()>(args, level, stream); });
}

}  // namespace dendrite::cuda
