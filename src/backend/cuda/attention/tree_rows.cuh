#pragma once

#include <climits>

#include "backend/cuda/attention/softmax_state.cuh"
#include "backend/cuda/attention/tree_output.cuh"
#include "backend/cuda/attention/window.cuh"

namespace dendrite::cuda {

constexpr int kRowsAThread = 2;  // of a product's 16 rows: lane / 4 and lane / 4 + 8
constexpr int kPanelDims = 64;   // of K and V in a row of shared memory
constexpr int kTileRows = static_cast<int>(kWarpgroupRows);

/// Panels that a head takes; the last one may have less of it.
constexpr int panels_of(int head_dim) {
  return (head_dim + kPanelDims - 1) / kPanelDims;
}

/// What a thread has of its rows of a tile, whatever instruction multiplies: which tokens they see,
/// and the sums of a run and of the group it is in. Its columns are those of the products' results:
/// two of every 8, kColumns times in each 64 dims, from first_column_ on; of panels of 64 dims
/// every kStep'th one, counted from number kFirst round. Columns past kDim, which is a multiple of
/// 16, are of nothing.
template <int kDim, int kColumns, int kThreads, int kStep = 1, int kFirst = 0>
class TileRows {
 protected:
  static constexpr int kValues =
      (panels_of(kDim) + kStep - 1) / kStep * kColumns * 4;  // [column][row][2]

  /// group_values: [kValues][kThreads], from this thread's first on.
  __device__ TileRows(const TreeAttentionArguments& args, float* group_values, int first_column)
      : args_(args), group_values_(group_values), first_column_(first_column) {}

  /// Row r of this thread is packed row `packed` of the tile, if it has so many.
  __device__ void find_row(int r, int first_head, int packed) {
    const auto heads = static_cast<int>(args_.slices.heads);
    record_[r] = -1;
    row_[r] = -1;
    only_[r] = false;
    low_[r] = 0;
    end_[r] = INT_MAX;  // rows past the last one: nothing is stored, so nothing need be masked
    if (packed >= tile_.row_count * heads) return;
    const int row = packed / heads;
    row_[r] = tile_.row_begin + row;
    record_[r] = static_cast<int>(row * args_.heads) + first_head + packed % heads;
    const auto position = static_cast<int>(args_.plan.positions[row_[r]]);
    only_[r] = has_one_part(args_.plan, row_[r]);
    low_[r] = first_seen(args_.plan.window, position);
    end_[r] = min(position + 1, tile_.end);
  }

  /// Before the tile's first block.
  __device__ void begin_tokens() {
    slot_ = tile_.first_slot;
    segment_ = tile_.begin;
    segment_last_ = segment_end(tile_.begin, tile_.end);
    in_group_ = false;
    clear();
  }

  /// Of scores as a product of a warpgroup has them, whose first column of this thread is token
  /// `first`: those that the rows do not see.
  template <int kCount>
  __device__ void mask(float (&scores)[kCount], int first) const {
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = first + 8 * j + i % 2;
        if (token < low_[i / 2] || token >= end_[i / 2]) scores[4 * j + i] = -INFINITY;
      }
    }
  }

  /// After the last block of the positions before `end`.
  __device__ void end_block(int end) {
    const bool segment_ends = end >= segment_last_;
    if (!segment_ends && end % static_cast<int>(kRunTokens) != 0) return;
    if (in_group_ || !segment_ends) fold_group(/*keep=*/!segment_ends);
    if (segment_ends) {
      store(end);
      slot_ += tile_.row_count;
      segment_ = end;
      segment_last_ = segment_end(end, tile_.end);
      in_group_ = false;
    }
    clear();
  }

  const TreeAttentionArguments& args_;
  TreeTile tile_;

  int row_[kRowsAThread];  // -1: none
  int low_[kRowsAThread];  // tokens [low, end) are seen
  int end_[kRowsAThread];
  float top_[kRowsAThread];  // of the run
  float sum_[kRowsAThread];
  float values_[kValues];

 private:
  __device__ void clear() {
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      top_[r] = -INFINITY;
      sum_[r] = 0;
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values_[i] = 0;
      // Many values that are known to be zeros get memory, not registers.
      if constexpr (kStep > 1) asm volatile("" : "+f"(values_[i]));
    }
  }

  /// Folds the run into the group that it goes on, which stays in shared memory (each thread's own
  /// values), or with `keep` false comes back as the run.
  __device__ void fold_group(bool keep) {
    if (!in_group_) {
      in_group_ = true;
#pragma unroll
      for (int r = 0; r < kRowsAThread; ++r) {
        group_top_[r] = -INFINITY;
        group_sum_[r] = 0;
      }
#pragma unroll
      for (int i = 0; i < kValues; ++i) group_values_[i * kThreads] = 0;
    }
    Fold fold[kRowsAThread];
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      fold[r] = fold_of(group_top_[r], top_[r]);
      group_top_[r] = top_[r] = fold[r].top;
      group_sum_[r] = sum_[r] = folded(fold[r], group_sum_[r], sum_[r]);
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      float& kept = group_values_[i * kThreads];
      values_[i] = folded(fold[i / 2 % 2], kept, values_[i]);
      if (keep) kept = values_[i];
    }
  }

  /// What the tile has of its segment, which ends here.
  __device__ void store(int end) const {
#pragma unroll
    for (int r = 0; r < kRowsAThread; ++r) {
      if (record_[r] < 0) continue;
      if (!only_[r]) {
        write_state(slot_ * args_.heads + record_[r], r);
      } else if (end_[r] > segment_ && low_[r] < min(end, end_[r])) {
        write_row(r);
      }
    }
  }

  /// The first of two neighbouring dims, from first_column_ on: in turn, and where it is.
  __device__ static constexpr int offset(int i) {
    return i / kColumns * (kPanelDims * kStep) + i % kColumns * 8;
  }
  __device__ int column(int i) const {
    if constexpr (kFirst == 0) return offset(i);
    constexpr int kBegin = kFirst * kPanelDims;
    return offset(i) + (first_column_ + offset(i) < kDim - kBegin ? kBegin : kBegin - kDim);
  }
  __device__ bool has_column(int i) const {
    return kDim % (kPanelDims * kStep) == 0 || first_column_ + offset(i) < kDim;
  }

  __device__ void write_state(std::int64_t record, int r) const {
    float* out = args_.states + record * kDim + first_column_;
#pragma unroll
    for (int i = 0; i < kValues / 4; ++i) {
      if (!has_column(i)) continue;
      *reinterpret_cast<float2*>(out + column(i)) =
          float2{values_[4 * i + 2 * r], values_[4 * i + 2 * r + 1]};
    }
    float* sums = args_.states + args_.slots * args_.heads * kDim;
    if (first_column_ == 0) *reinterpret_cast<float2*>(sums + record * 2) = {top_[r], sum_[r]};
  }
  __device__ void write_row(int r) const {
    const auto heads = static_cast<int>(args_.heads);
    const std::int64_t row = row_[r];
    const int head = record_[r] % heads;
    const int first = head * kDim + first_column_;
    const float factor = output_factor(args_, head, top_[r], sum_[r]);
    with_output(args_, row, first, [&](auto* out) {
#pragma unroll
      for (int i = 0; i < kValues / 4; ++i) {
        if (!has_column(i)) continue;
        write_output(out + column(i), values_[4 * i + 2 * r], values_[4 * i + 2 * r + 1], factor);
      }
    });
  }

  float* group_values_;  // [value][thread]
  int first_column_;
  int record_[kRowsAThread];  // (row of the tile, head); -1: none
  bool only_[kRowsAThread];   // what the tile has of the row is all there is

  std::int64_t slot_ = 0;  // of the first row's next result,
  int segment_ = 0;        // of tokens from here
  int segment_last_ = 0;   // to here
  float group_top_[kRowsAThread];
  float group_sum_[kRowsAThread];
  bool in_group_ = false;
};

}  // namespace dendrite::cuda
