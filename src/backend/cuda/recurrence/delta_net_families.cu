// Families of rows of a gated delta network: all meet the state that they share as one product of
// matrices, then each is solved behind those that it goes on from, by their places in the chunk: to
// the bit what delta_net_scan.cu computes of each path alone. A thread block has 16 columns of all
// value heads of a key head. Floor: two products of key_dim * value_dim multiply-adds a row and
// head; what rows need of each other is a tenth of that.
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/recurrence/delta_net.h"
#include "backend/cuda/recurrence/delta_net_columns.cuh"

namespace dendrite::cuda {
namespace {

constexpr int kFamilyThreads = 512;
constexpr int kFamilyWarps = kFamilyThreads / 32;
constexpr int kFamilyColumns = 16;  // of a head and thread block
constexpr int kBatches = kMostFamilyRows / kRows;
constexpr int kOwnRows = kMostFamilyRows / kFamilyWarps;
constexpr int kEarlyBatches = 4;  // that the warps begin with, eight keys or queries each

template <int kHeads>
struct Memory {
  static constexpr int kAll = kHeads * kFamilyColumns;

  alignas(16) float state[kPieceKeyDim][kAll];
  alignas(16) float vectors[kBatches][2][kPieceKeyDim][kRows];  // keys, queries
  alignas(16) PieceHead heads[kBatches][kHeads];
  alignas(16) float met[2][kMostFamilyRows][kAll];  // by keys and by queries
  /// Of rows: their values at first.
  alignas(16) float writes[kMostFamilyKnown + kMostFamilyRows][kAll];
  FamilyRow rows[kMostFamilyRows];
  int places[kRows + 1];
};

template <int kHeads>
class Members {
 public:
  using Of = Columns<kHeads, kFamilyColumns, kLanes>;

  __device__ Members(const DeltaNetArguments& args, const RowFamily& family, Memory<kHeads>& memory)
      : a_(args),
        rows_(family.rows),
        first_batch_(args.cut.count + family.first_slot / kRows),
        s_(memory),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        key_head_(static_cast<int>(blockIdx.y)),
        first_column_(static_cast<int>(blockIdx.x) * kFamilyColumns) {}

  /// `family`: the one that it is made of.
  __device__ void go(const RowFamily& family) const {
    load_rows(family);
    load_state(family);
    load_known(family);
    commit_copies();
    wait_for_earlier();  // what is not of this pass needs no wait
    for (int i = 0; i < kEarlyBatches; ++i) load_vectors(i);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    load_values();
    load_heads();
    for (int i = kEarlyBatches; i < kBatches; ++i) load_vectors(i);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    float met[2][Of::kCount];
    if (warp_ < units()) meet(warp_, met);
    wait_copies<0>();
    __syncthreads();
    if (warp_ < units()) keep_met(warp_, met);
    for (int unit = warp_ + kFamilyWarps; unit < units(); unit += kFamilyWarps) {
      meet(unit, met);
      keep_met(unit, met);
    }
    __syncthreads();
    solve();
  }

 private:
  __device__ int head(int column) const { return key_head_ * kHeads + column / kFamilyColumns; }
  /// Of all values of a row.
  __device__ int value(int column) const {
    return head(column) * a_.value_dim + first_column_ + column % kFamilyColumns;
  }
  __device__ float* values_of(int row) const {
    return a_.values + static_cast<std::int64_t>(row) * (a_.value_heads * a_.value_dim);
  }
  __device__ float* writes_of(int slot) const {
    return a_.journals + slot * a_.journal_stride + a_.key_heads * kPieceKeyDim;
  }

  /// Calls copy(row, column) for each four columns of so many rows.
  template <typename Copy>
  __device__ void each_four(int rows, const Copy& copy) const {
    constexpr int kFours = Of::kAll / 4;
    for (int i = thread_; i < rows * kFours; i += kFamilyThreads) copy(i / kFours, i % kFours * 4);
  }
  __device__ void load_state(const RowFamily& family) const {
    const float* const anchor = a_.anchors + family.anchor * a_.anchor_stride + first_column_;
    each_four(kPieceKeyDim, [&](int row, int column) {
      const int at = head(column) * kPieceKeyDim + row;
      const float* const from =
          anchor + static_cast<std::int64_t>(at) * a_.value_dim + column % kFamilyColumns;
      const bool take = family.anchor >= 0;
      copy_async(shared_address(&s_.state[row][column]), take ? from : a_.anchors, take);
    });
  }
  __device__ void load_rows(const RowFamily& family) const {
    static_assert(sizeof(FamilyRow) == 32);
    if (thread_ <= kRows) s_.places[thread_] = family.places[thread_];
    if (thread_ >= 2 * rows_) return;
    const auto* const from =
        reinterpret_cast<const std::byte*>(a_.cut.family_rows + family.first_slot);
    copy_async(shared_address(s_.rows) + 16 * thread_, from + 16 * thread_, true);
  }
  /// (Journals of some sizes begin anywhere.)
  __device__ void load_known(const RowFamily& family) const {
    const bool aligned = reinterpret_cast<std::uintptr_t>(writes_of(1)) % 16 == 0 &&
                         reinterpret_cast<std::uintptr_t>(writes_of(0)) % 16 == 0;
    each_four(family.known, [&](int i, int column) {
      const float* const from = writes_of(family.journals[i]) + value(column);
      float* const to = &s_.writes[i][column];
      if (aligned) return copy_async(shared_address(to), from, true);
      for (int n = 0; n < 4; ++n) copy_async(to + n, from + n);
    });
  }
  __device__ void load_values() const {
    each_four(rows_, [&](int i, int column) {
      copy_async(shared_address(&s_.writes[kMostFamilyKnown + i][column]),
                 values_of(s_.rows[i].row) + value(column), true);
    });
  }

  __device__ PieceRecord& record(int batch) const {
    return record_of(a_, first_batch_ + batch, key_head_, kHeads);
  }
  __device__ int batches() const { return (rows_ + kRows - 1) / kRows; }
  __device__ void load_heads() const {
    constexpr int kParts = sizeof(s_.heads[0]) / 16;
    for (int i = thread_; i < batches() * kParts; i += kFamilyThreads) {
      const auto* const from = reinterpret_cast<const std::byte*>(record(i / kParts).heads());
      copy_async(shared_address(s_.heads) + 16 * i, from + 16 * (i % kParts), true);
    }
  }
  __device__ void load_vectors(int batch) const {
    if (batch >= batches()) return;
    constexpr int kParts = sizeof(s_.vectors[0]) / 16;
    const auto* const from = reinterpret_cast<const std::byte*>(&record(batch).keys);
    for (int i = thread_; i < kParts; i += kFamilyThreads) {
      copy_async(shared_address(s_.vectors[batch]) + 16 * i, from + 16 * i, true);
    }
  }

  /// Eight rows' keys, and then their queries, are a warp's.
  __device__ int units() const { return (rows_ + kTile - 1) / kTile * 2; }
  __device__ int part() const { return thread_ % 32 / kLanes; }
  __device__ int group() const { return thread_ % kLanes; }
  __device__ static int first_of(int unit) { return unit / 2 % 2 * kTile; }
  __device__ void meet(int unit, float (&met)[2][Of::kCount]) const {
    Of::meet(s_.state, s_.vectors[unit / 4][unit % 2], first_of(unit), part(), group(), met);
  }
  __device__ void keep_met(int unit, float (&met)[2][Of::kCount]) const {
    const int batch = unit / 4;
    const int own = first_of(unit) + Of::own_row(part());
#pragma unroll
    for (int t = 0; t < 2; ++t) {
#pragma unroll
      for (int c = 0; c < Of::kCount; ++c) {
        const PieceHead& head = s_.heads[batch][Of::head(group(), c / 4)];
        met[t][c] = __fmul_rn(head.left[own + t], met[t][c]);
      }
      Of::store_row(s_.met[unit % 2][batch * kRows + own + t], group(), met[t]);
    }
  }

  /// What rows write, and what comes out of them, not normed yet: a warp has each sixteenth row, a
  /// lane two columns of them. From place to place the rows there are done, and those behind them
  /// take what the row of their path there wrote.
  __device__ void solve() const {
    float2 known[kOwnRows];  // of the value, by what was written before
    float2 out[kOwnRows];
    float2 value[kOwnRows];
    float writing[kOwnRows];
#pragma unroll
    for (int n = 0; n < kOwnRows; ++n) {
      const int i = own_row(n);
      if (i >= rows_ || !has_columns()) break;
      known[n] = two(s_.met[0][i]);
      out[n] = two(s_.met[1][i]);
      value[n] = two(s_.writes[kMostFamilyKnown + i]);
      writing[n] = head_of(i).writing[i % kRows];
    }
#pragma unroll 1
    for (int place = 0; place < kRows; ++place) {
      const int begin = s_.places[place];
      const int end = s_.places[place + 1];
#pragma unroll
      for (int n = 0; n < kOwnRows; ++n) {
        const int i = own_row(n);
        if (i >= end || !has_columns()) break;
        if (i < begin) continue;
        two(s_.writes[kMostFamilyKnown + i]) = make_float2(writing[n] * (value[n].x - known[n].x),
                                                           writing[n] * (value[n].y - known[n].y));
      }
      if (begin != end) __syncthreads();
#pragma unroll
      for (int n = 0; n < kOwnRows; ++n) {
        const int i = own_row(n);
        if (i >= rows_ || !has_columns()) break;
        if (i < end) continue;
        const PieceHead& head = head_of(i);
        const float2 write = two(s_.writes[s_.rows[i].before[place]]);
        add(head.on_keys[i % kRows][place], write, known[n]);
        add(head.on_queries[i % kRows][place], write, out[n]);
      }
    }
#pragma unroll
    for (int n = 0; n < kOwnRows; ++n) {
      if (own_row(n) >= rows_ || !has_columns()) break;
      store(own_row(n), out[n]);
    }
  }
  __device__ int own_row(int n) const {
    return n * kFamilyWarps + warp_;
  }
  __device__ int column() const {
    return thread_ % 32 * 2;
  }
  __device__ bool has_columns() const {
    return column() < Of::kAll;
  }
  __device__ float2& two(float* row) const {
    return *reinterpret_cast<float2*>(row + column());
  }
  __device__ const PieceHead& head_of(int i) const {
    return s_.heads[i / kRows][column() / kFamilyColumns];
  }
  static __device__ void add(float factor, float2 write, float2& to) {
    to.x = fmaf(factor, write.x, to.x);
    to.y = fmaf(factor, write.y, to.y);
  }
  __device__ void store(int i, float2 out) const {
    const FamilyRow& row = s_.rows[i];
    const float2 write = two(s_.writes[kMostFamilyKnown + i]);
    add(head_of(i).on_queries[i % kRows][row.place], write, out);
    *reinterpret_cast<float2*>(values_of(row.row) + value(column())) = out;
    if (row.journal < 0) return;
    float* const to = writes_of(row.journal) + value(column());
    to[0] = write.x;
    to[1] = write.y;
  }

  const DeltaNetArguments& a_;
  const int rows_;
  const int first_batch_;  // of its rows, among all records
  Memory<kHeads>& s_;
  const int thread_;
  const int warp_;
  const int key_head_;
  const int first_column_;  // of each head
};

/// grid (value_dim / kFamilyColumns, key_heads, families)
template <int kHeads>
__global__ void __launch_bounds__(kFamilyThreads, 1)
    families_kernel(const __grid_constant__ DeltaNetArguments args, std::int32_t level) {
  extern __shared__ __align__(16) std::byte memory[];
  const RowFamily& family = args.cut.families[blockIdx.z];
  let_next_begin();
  if (family.level != level) return wait_for_earlier();
  if (level > 0) wait_for_earlier();
  Members<kHeads>(args, family, *reinterpret_cast<Memory<kHeads>*>(memory)).go(family);
}

}  // namespace

std::int64_t delta_net_family_shared_bytes() {
  return std::int64_t{sizeof(Memory<kMostPieceHeads>)};
}

void launch_delta_net_families(const DeltaNetArguments& args, std::int32_t level,
                               cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.value_dim / kFamilyColumns),
                  static_cast<unsigned>(args.key_heads),
                  static_cast<unsigned>(args.cut.family_count));
  with_heads(args, [&](auto heads) {
    constexpr auto kBytes = sizeof(Memory<heads()>);
    const auto kernel = families_kernel<heads()>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    launch_early(kernel, grid, kFamilyThreads, kBytes, stream, args, level);
  });
}

}  // namespace dendrite::cuda
