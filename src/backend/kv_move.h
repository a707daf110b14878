#pragma once

#include <cstdint>
#include <span>

#include "backend/kv_store.h"

namespace dendrite {

/// Consecutive tokens of one page whose K and V go to another page, for other positions. Where they
/// lie in the two pages is unrelated.
struct KvMove {
  std::int64_t from_slot = 0;  // page * page_tokens + offset, of the first token
  std::int64_t to_slot = 0;
  std::int32_t count = 0;         // no further than the ends of both pages
  std::int64_t old_position = 0;  // of the first token
  std::int64_t new_position = 0;
};

/// Arguments of Backend::move_kv.
struct KvMoves {
  /// No page is the source of one run and the target of another; no slot is a target twice.
  std::span<const KvMove> runs;
  std::int64_t rotary_dim = 0;  // as Rope::rotary_dim; 0: K has no positions and is copied, too
  /// Blocks of kAnglePositions positions, in order, of the cosines and sines that K was rotated by
  /// (the bits of Rope::cos_sin): device [kAnglePositions, rotary_dim], rotary_dim / 2 cosines,
  /// then sines. Null, or behind the end: a block of no run whose position changes.
  std::span<const float* const> angles;
  /// 1 / s^2, where cosines and sines are those of the angle times s (YaRN).
  float inverse_scale2 = 1;
  KvStore* kv = nullptr;

  /// Of K and V that are written.
  std::int64_t bytes() const {
    std::int64_t tokens = 0;
    for (const KvMove& run : runs) tokens += run.count;
    return tokens * kv->shape().token_bytes();
  }

  static constexpr std::int64_t kAnglePositions = 256;
};

}  // namespace dendrite
