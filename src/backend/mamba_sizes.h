#pragma once

#include <cstdint>

namespace dendrite {

/// Of a Mamba-2 layer, and what it keeps (see StateShape).
struct MambaSizes {
  std::int64_t heads = 0;  // a multiple of groups: head h goes by group h / (heads / groups)
  std::int64_t head_dim = 0;
  std::int64_t groups = 0;  // of B and C, and of the norm
  std::int64_t state_dim = 0;
  std::int64_t taps = 0;  // of the convolution, the last one being the row's own; at least 2

  std::int64_t out_columns() const { return heads * head_dim; }
  /// Columns of B, and of C.
  std::int64_t group_columns() const { return groups * state_dim; }
  /// That are convolved: x, B, C.
  std::int64_t channels() const { return out_columns() + 2 * group_columns(); }
  std::int64_t in_columns() const { return out_columns() + channels() + heads; }

  /// As it lies in every store. An anchor: the state [heads][state_dim][head_dim], then what was
  /// convolved at the last taps - 1 positions [taps - 1][channels()], oldest first; zeros before
  /// position 0. A journal: B [groups][state_dim], dt * x [heads][head_dim], the logarithm of the
  /// row's decay [heads], and what was convolved [channels()].
  std::int64_t state_values() const { return heads * state_dim * head_dim; }
  std::int64_t anchor_values() const { return state_values() + (taps - 1) * channels(); }
  std::int64_t decays_at() const { return group_columns() + out_columns(); }
  std::int64_t convolved_at() const { return decays_at() + heads; }
  std::int64_t journal_values() const { return convolved_at() + channels(); }
};

}  // namespace dendrite
