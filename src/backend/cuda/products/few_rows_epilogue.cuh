#pragma once

#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/products/few_rows_arguments.cuh"
#include "backend/cuda/stores/rope.cuh"

// What the kernels of few_rows_wgmma.cu and e4m3_products.cu do with a thread's sums.
namespace dendrite::cuda::few_rows {

__device__ inline float* target_of(const Arguments& args, int row, int column) {
  return static_cast<float*>(args.out) + row * args.out_stride + column;
}

/// Two columns of a row that is added to.
__device__ inline float2 load_old(const Arguments& args, int row, int column) {
  float2 old = make_float2(0, 0);
  if (args.epilogue != Epilogue::kAdd || row >= args.rows || column >= args.outputs) return old;
  const float* from = target_of(args, row, column);
  if (args.paired && column + 1 < args.outputs) {
    return __ldcg(reinterpret_cast<const float2*>(from));
  }
  old.x = __ldcg(from);
  if (column + 1 < args.outputs) old.y = __ldcg(from + 1);
  return old;
}

__device__ inline void store_pair(const Arguments& args, int row, int column, float first,
                                  float second, float2 old) {
  if (row >= args.rows || column >= args.outputs) return;
  const bool both = column + 1 < args.outputs;
  if (args.bias != nullptr) {
    first += args.bias[column];
    if (both) second += args.bias[column + 1];
  }
  if (args.epilogue == Epilogue::kAdd) {
    first += old.x;
    second += old.y;
  }
  float* to = target_of(args, row, column);
  if (args.paired && both) {
    *reinterpret_cast<float2*>(to) = make_float2(first, second);
    return;
  }
  to[0] = first;
  if (both) to[1] = second;
}

/// kSiluMul: of a column.
__device__ inline float silu_of(const Arguments& args, int column, float gate, float up) {
  if (args.bias != nullptr && column < args.outputs) {
    gate += args.bias[column];
    up += args.bias[args.ffn + column];
  }
  return silu(gate) * up;
}

__device__ inline void store_silu(const Arguments& args, int row, int column, float gate,
                                  float up) {
  if (row >= args.rows || column >= args.outputs) return;
  static_cast<bf16*>(args.out)[row * args.out_stride + column] =
      narrow<bf16>(silu_of(args, column, gate, up));
}
/// kSiluMul: of an even column and the next. kPairs: rows of results begin on four bytes and are
/// even.
template <bool kPairs>
__device__ inline void store_narrow(const Arguments& args, int row, int column, float first,
                                    float second) {
  if (row >= args.rows || column >= args.outputs) return;
  bf16* to = static_cast<bf16*>(args.out) + row * args.out_stride + column;
  if constexpr (kPairs) {
    *reinterpret_cast<std::uint32_t*>(to) = pack_bf16(first, second);
  } else {
    to[0] = narrow<bf16>(first);
    if (column + 1 < args.outputs) to[1] = narrow<bf16>(second);
  }
}

/// kRope: walks over the eights of a unit. Columns 2t and 2t + 1 of an eight are a pair of a head,
/// so a thread has whole ones.
class PairWalk {
 public:
  __device__ PairWalk(const Arguments& args, int unit)
      : PairWalk(FirstPair(args, unit), args.unit_pairs) {}

  __device__ const HeadPair& pair() const { return pair_; }
  __device__ void next() {
    pair_.i += 4;
    if (pair_.i < end_) return;
    pair_.i -= pairs_;
    ++pair_.head;
  }

 private:
  __device__ PairWalk(const FirstPair& first, int pairs)
      : pairs_(pairs),
        pair_{first.head, first.pair + static_cast<int>(threadIdx.x) % 4},
        end_(first.pair + pairs) {}

  int pairs_;
  HeadPair pair_;
  int end_;
};

/// kRope: what a thread does with its pairs of two rows.
class HeadSink {
 public:
  __device__ HeadSink(const Arguments& args, int row, int other_row)
      : args_(args), rows_{row, other_row} {
    for (int r = 0; r < 2; ++r) {
      if (rows_[r] >= args.rows) continue;
      slots_[r] = args.rope.slots[rows_[r]];
      extra_[r] = ExtraStores(args.rope, rows_[r]);
    }
  }

  __device__ float2 load_angle(const HeadPair& pair, int r) const {
    if (rows_[r] >= args_.rows) return make_float2(0, 0);
    return pair.load_angle(args_.rope, rows_[r]);
  }

  /// Stores a pair, which is rotated in place where it is of a query or key.
  __device__ void put(const HeadPair& pair, int r, float2 angle, float& a, float& b) const {
    if (!pair.exists(args_.rope)) return;
    float* queries = rows_[r] < args_.rows ? target_of(args_, rows_[r], 0) : nullptr;
    pair.put(args_.rope, args_.bias, angle, slots_[r], queries, a, b);
  }

  /// Calls store(slot) for each extra store of row number r. None, if all of the unit is queries.
  template <typename Store>
  __device__ void each_extra(int unit, int r, Store store) const {
    const int end = FirstPair(args_, unit).head + args_.unit_heads;
    if (end > args_.rope.heads) extra_[r].each(args_.rope, store);
  }
  /// Once more a pair that was put; queries are not stored.
  __device__ void put_again(const HeadPair& pair, std::int64_t slot, float a, float b) const {
    const RopeArguments& rope = args_.rope;
    if (pair.exists(rope) && !pair.is_query(rope)) pair.store(rope, slot, a, b);
  }

 private:
  const Arguments& args_;
  int rows_[2];
  std::int64_t slots_[2] = {-1, -1};
  ExtraStores extra_[2];
};

}  // namespace dendrite::cuda::few_rows
