#pragma once

#include <cstdint>

namespace dendrite {

/// Of a gated delta network, and what a layer of it keeps (see StateShape).
struct DeltaNetSizes {
  std::int64_t key_heads = 0;
  std::int64_t value_heads = 0;  // a multiple of key_heads: value head j goes by key head
                                 // j / (value_heads / key_heads)
  std::int64_t key_dim = 0;      // of a head
  std::int64_t value_dim = 0;
  std::int64_t taps = 0;  // of the convolution, the last one being the row's own; at least 2

  /// That are convolved: queries, keys, values.
  std::int64_t channels() const { return 2 * key_heads * key_dim + out_columns(); }
  std::int64_t out_columns() const { return value_heads * value_dim; }
  std::int64_t in_columns() const { return channels() + out_columns() + 2 * value_heads; }

  /// As it lies in every store. An anchor: the state [value_heads][key_dim][value_dim], then what
  /// was convolved at the last taps - 1 positions [taps - 1][channels()], oldest first; zeros
  /// before position 0. A journal: keys [key_heads][key_dim], writes [value_heads][value_dim], the
  /// logarithm of the decay since the chunk began, this row's included [value_heads], and what was
  /// convolved [channels()].
  std::int64_t anchor_values() const {
    return value_heads * key_dim * value_dim + (taps - 1) * channels();
  }
  std::int64_t journal_values() const {
    return key_heads * key_dim + value_heads * (value_dim + 1) + channels();
  }
};

}  // namespace dendrite
