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

constexpr int kFamilyThreads = 256;
constexpr int kFamilyWarps = kFamilyThreads / 32;
constexpr int kFamilyColumns = 16;  // of a head and thread block
constexpr int kBatches = kMostFamilyRows / kRows;
constexpr int kEarlyBatches = 2;  // that the warps begin with, eight keys or queries each

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
        family_(family),
        s_(memory),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        key_head_(static_cast<int>(blockIdx.y)),
        first_column_(static_cast<int>(blockIdx.x) * kFamilyColumns) {}

  /// `family`: the one that it is made of.
  __device__ void go(const RowFamily& family) const {
    load_state();
    load_rows(family);
    load_known();
    wait_for_earlier();  // what is not of this pass needs no wait
    for (int i = 0; i < kEarlyBatches; ++i) load_vectors(i);
    commit_copies();
    load_heads();
    load_values();
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
    for (int i = warp_; i < family_.rows; i += kFamilyWarps) store(i);
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
  __device__ const FamilyRow* members() const { return a_.cut.family_rows + family_.first_slot; }

  /// Calls copy(row, column) for each four columns of so many rows.
  template <typename Copy>
  __device__ void each_four(int rows, const Copy& copy) const {
    constexpr int kFours = Of::kAll / 4;
    for (int i = thread_; i < rows * kFours; i += kFamilyThreads) copy(i / kFours, i % kFours * 4);
  }
  __device__ void load_state() const {
    const float* const anchor = a_.anchors + family_.anchor * a_.anchor_stride + first_column_;
    each_four(kPieceKeyDim, [&](int row, int column) {
      const int at = head(column) * kPieceKeyDim + row;
      const float* const from =
          anchor + static_cast<std::int64_t>(at) * a_.value_dim + column % kFamilyColumns;
      const bool take = family_.anchor >= 0;
      copy_async(shared_address(&s_.state[row][column]), take ? from : a_.anchors, take);
    });
  }
  __device__ void load_rows(const RowFamily& family) const {
    static_assert(sizeof(FamilyRow) == 32);
    if (thread_ <= kRows) s_.places[thread_] = family.places[thread_];
    if (thread_ >= 2 * family_.rows) return;
    const auto* const from = reinterpret_cast<const std::byte*>(members());
    copy_async(shared_address(s_.rows) + 16 * thread_, from + 16 * thread_, true);
  }
  /// (Journals begin anywhere.)
  __device__ void load_known() const {
    for (int i = thread_; i < family_.known * Of::kAll; i += kFamilyThreads) {
      const int slot = a_.cut.known[family_.known_begin + i / Of::kAll];
      const int column = i % Of::kAll;
      copy_async(&s_.writes[i / Of::kAll][column], writes_of(slot) + value(column));
    }
  }
  __device__ void load_values() const {
    each_four(family_.rows, [&](int i, int column) {
      copy_async(shared_address(&s_.writes[kMostFamilyKnown + i][column]),
                 values_of(members()[i].row) + value(column), true);
    });
  }

  __device__ PieceRecord& record(int batch) const {
    const std::int64_t number = a_.cut.count + family_.first_slot / kRows + batch;
    return *reinterpret_cast<PieceRecord*>(a_.cut.records + (number * a_.key_heads + key_head_) *
                                                                piece_bytes(kHeads));
  }
  __device__ int batches() const { return (family_.rows + kRows - 1) / kRows; }
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
  __device__ int units() const { return (family_.rows + kTile - 1) / kTile * 2; }
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

  /// The lane's two columns, if there are any.
  __device__ int column() const {
    return thread_ % 32 * 2;
  }
  __device__ const PieceHead& head_of(int i) const {
    return s_.heads[i / kRows][column() / kFamilyColumns];
  }
  /// Adds writes of the rows before row number i, each times its factor, in their order. (What is
  /// read behind them is not used.)
  __device__ float2 add_writes(int i, const float (&factors)[kRows], float2 sum) const {
    const FamilyRow& row = s_.rows[i];
    const uint4 packed = *reinterpret_cast<const uint4*>(row.before);
    const std::uint32_t before[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int first = 0; first < kRows; first += 4) {
      if (first >= row.place) break;
      float factor[4];
      float2 write[4];
      load_four(factors + first, factor);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        write[j] = two(s_.writes[before[first / 4] >> (8 * j) & 0xff]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (first + j >= row.place) continue;
        sum.x = fmaf(factor[j], write[j].x, sum.x);
        sum.y = fmaf(factor[j], write[j].y, sum.y);
      }
    }
    return sum;
  }
  __device__ float2& two(float* row) const {
    return *reinterpret_cast<float2*>(row + column());
  }

  /// What rows write: those of a place are a warp's each, behind all of the places before it.
  __device__ void solve() const {
#pragma unroll 1
    for (int place = 0; place < kRows; ++place) {
      const int end = s_.places[place + 1];
      if (s_.places[place] == end) continue;
      for (int i = s_.places[place] + warp_; i < end; i += kFamilyWarps) {
        if (column() >= Of::kAll) continue;
        const PieceHead& head = head_of(i);
        const float writing = head.writing[i % kRows];
        const float2 known = add_writes(i, head.on_keys[i % kRows], two(s_.met[0][i]));
        float2& write = two(s_.writes[kMostFamilyKnown + i]);
        write = make_float2(writing * (write.x - known.x), writing * (write.y - known.y));
      }
      __syncthreads();
    }
  }
  /// What comes out of row number i, not normed yet, and what its journal keeps of writes.
  __device__ void store(int i) const {
    if (column() >= Of::kAll) return;
    const FamilyRow& row = s_.rows[i];
    const auto& on_queries = head_of(i).on_queries[i % kRows];
    const float2 write = two(s_.writes[kMostFamilyKnown + i]);
    float2 out = add_writes(i, on_queries, two(s_.met[1][i]));
    out.x = fmaf(on_queries[row.place], write.x, out.x);
    out.y = fmaf(on_queries[row.place], write.y, out.y);
    *reinterpret_cast<float2*>(values_of(row.row) + value(column())) = out;
    if (row.journal < 0) return;
    float* const to = writes_of(row.journal) + value(column());
    to[0] = write.x;
    to[1] = write.y;
  }

  const DeltaNetArguments& a_;
  const RowFamily family_;
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
