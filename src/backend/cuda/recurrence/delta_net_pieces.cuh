#pragma once

#include <cstdint>

#include "backend/cuda/recurrence/delta_net.h"
#include "backend/cuda/recurrence/delta_net_shared.cuh"

// A run of a gated delta network, cut where chunks end: its pieces, and what is known of a piece
// without the state before it. One kernel computes that of all pieces at once, a second one goes
// over the states.
namespace dendrite::cuda {

inline constexpr int kPieceKeyDim = 128;
inline constexpr int kPieceTaps = 4;
inline constexpr int kMostPieceHeads = 4;  // of a key head
/// Thread blocks that go over states have so many columns of a head, or fewer.
inline constexpr int kHeadColumns = 16;

/// Of a value head; t: a place in the chunk, or which of a family's sixteen rows; j: a place.
struct PieceHead {
  /// The key of t on that of j before it, decayed: [j][t], of families [t][j].
  float on_keys[kRows][kRows];
  float on_queries[kRows][kRows];  // [t][j]: the query of t on keys up to its own, decayed
  float left[kRows];               // of the state before the chunk, behind the place
  float writing[kRows];            // how much is written
  float behind[kRows];             // what is left of it behind the chunk
};

/// Of a piece, or of sixteen rows of a family, which have vectors alone, and a key head. Its value
/// heads follow.
struct PieceRecord {
  float keys[kPieceKeyDim][kRows];  // by place, with zeros where there is none; or by row
  float queries[kPieceKeyDim][kRows];
  std::int32_t journals[kRows];     // where a place's goes, or -1: also where it was known before
  float all_left[kMostPieceHeads];  // by value head: of the state before, behind the chunk
  std::int32_t anchor;              // where the state behind it goes, or -1
  std::int32_t unused[3];

  __device__ PieceHead* heads() { return reinterpret_cast<PieceHead*>(this + 1); }
};

__host__ __device__ constexpr std::int64_t piece_bytes(int heads_of_key) {
  return static_cast<std::int64_t>(sizeof(PieceRecord)) +
         heads_of_key * static_cast<std::int64_t>(sizeof(PieceHead));
}

__device__ inline PieceRecord& record_of(const DeltaNetArguments& a, std::int64_t number,
                                         int key_head, int heads_of_key) {
  return *reinterpret_cast<PieceRecord*>(a.cut.records + (number * a.key_heads + key_head) *
                                                             piece_bytes(heads_of_key));
}

/// Where a piece of a run lies: its rows are at places [place, place + count) of their chunk.
struct Piece {
  int first;  // row of the run
  int place;
  int count;

  static __device__ Piece of(const RecurrencePlan::Run& run, int index) {
    const int first = index == 0 ? 0 : index * kRows - run.known;
    const int place = index == 0 ? run.known : 0;
    return {first, place, min(kRows - place, run.row_end - run.row_begin - first)};
  }
  __device__ bool has(int at) const { return at >= place && at < place + count; }
  __device__ bool ends_chunk() const { return place + count == kRows; }
};

}  // namespace dendrite::cuda
