#pragma once

#include <cstdint>

#include "backend/cuda/recurrence/delta_net.h"

// What a thread block of the gated delta network has in shared memory, and how it gets there.
namespace dendrite::cuda {

inline constexpr int kRows = static_cast<int>(kChunkTokens);
inline constexpr int kThreads = 128;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kColumns = 32;                 // of a thread block
inline constexpr int kParts = kThreads / kColumns;  // threads of a column
// From row to row of the state, and of keys and queries: in other banks.
inline constexpr int kStride = kColumns + 8;
inline constexpr int kKeyStride = kRows + 4;

/// Thread blocks on a multiprocessor, by shared memory and registers.
inline constexpr int kBlocks = 4;
inline constexpr int kChannelBlocks = 3;  // where channels decay by themselves

/// Of a row's logarithm: e to it is 0, and sums of them stay finite.
constexpr float kLeastDecay = -88.0f;

/// log(1 + e^x)
__device__ inline float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

__device__ inline void load_four(const float* from, float* to) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x;
  to[1] = four.y;
  to[2] = four.z;
  to[3] = four.w;
}

/// What is convolved, all channels: of a run's row, or of one before it (negative), which the
/// journals `known` have, or the anchor. Null: zeros. Where loads stood behind branches each would
/// wait for the one before.
__device__ inline const float* convolved_row(const DeltaNetArguments& a,
                                             const RecurrencePlan::Run& run,
                                             const std::int32_t* known, int row) {
  if (row >= 0) return a.in + (run.row_begin + row) * a.in_stride;
  const int keys = a.key_heads * a.key_dim;
  const int values = a.value_heads * a.value_dim;
  const int place = run.known + row;
  const std::int32_t slot = place >= 0 ? known[place] : 0;
  const float* const kept = a.journals + slot * a.journal_stride + keys + values + a.decay_columns;
  const float* const before = a.anchors + run.anchor * a.anchor_stride + values * a.key_dim +
                              (a.taps - 1 + place) * (2 * keys + values);
  return place >= 0 ? kept : run.anchor >= 0 ? before : nullptr;
}
__device__ inline float load(const float* row, int channel) {
  return row != nullptr ? row[channel] : 0.0f;
}

/// A block's shared memory.
struct Shared {
  float* state;    // [key_dim][kStride], of the block's columns
  float* keys;     // [key_dim][kKeyStride], by place in the chunk
  float* queries;  // [key_dim][kKeyStride], by row of the piece
  float* writes;   // [16][kColumns], by place in the chunk
  float* values;   // [16][kColumns]
  float* on_keys;  // [16][16]: of a row of the piece and a place before it, decayed
  float* on_queries;
  float* decayed;       // [16]: logarithms since the chunk began, by place
  float* writing;       // [16]: how much is written, by row of the piece
  std::int32_t* known;  // [16]: slots of the journals, by place in the chunk
  // Where channels decay by themselves; [key_dim][kKeyStride] but the last:
  float* left;          // e^g, by place in the chunk
  float* decayed_keys;  // what is left of keys by the latest row, by place
  float* met_keys;      // times what is left since the chunk began, by row of the piece
  float* all_left;      // [key_dim]: what is left since then
};

__device__ inline Shared shared_of(const DeltaNetArguments& a, float* memory) {
  Shared s{};
  const auto take = [&memory](int count) {
    float* const begin = memory;
    memory += count;
    return begin;
  };
  s.keys = take(a.key_dim * kKeyStride);
  s.queries = take(a.key_dim * kKeyStride);
  s.state = take(a.key_dim * kStride);
  s.writes = take(kRows * kColumns);
  s.values = take(kRows * kColumns);
  s.on_keys = take(kRows * kRows);
  s.on_queries = take(kRows * kRows);
  s.decayed = take(kRows);
  s.writing = take(kRows);
  s.known = reinterpret_cast<std::int32_t*>(take(kRows));
  if (a.by_channel) {
    s.left = take(a.key_dim * kKeyStride);
    s.decayed_keys = take(a.key_dim * kKeyStride);
    s.met_keys = take(a.key_dim * kKeyStride);
    s.all_left = take(a.key_dim);
  }
  return s;
}

inline std::int64_t shared_bytes(const DeltaNetArguments& a) {
  const std::int64_t floats = std::int64_t{a.key_dim} * (2 * kKeyStride + kStride) +
                              2 * kRows * kColumns + 2 * kRows * kRows + 3 * kRows;
  const std::int64_t of_channels =
      a.by_channel ? std::int64_t{a.key_dim} * (3 * kKeyStride + 1) : 0;
  return 4 * (floats + of_channels);
}

}  // namespace dendrite::cuda
