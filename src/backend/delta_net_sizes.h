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
  /// Kimi Delta Attention: each channel of k decays by itself, gates are sigmoids, and there are as
  /// many heads of keys as of values. Else a value head decays as a whole, and gates are silu.
  bool by_channel = false;

  /// That are convolved: queries, keys, values.
  std::int64_t channels() const { return 2 * key_heads * key_dim + out_columns(); }
  std::int64_t out_columns() const { return value_heads * value_dim; }
  std::int64_t decay_columns() const { return by_channel ? key_heads * key_dim : value_heads; }
  /// What goes in: what is convolved, gates, writes, decays; by channel gates are the last.
  std::int64_t writes_at() const { return channels() + (by_channel ? 0 : out_columns()); }
  std::int64_t decays_at() const { return writes_at() + value_heads; }
  std::int64_t gates_at() const { return by_channel ? decays_at() + decay_columns() : channels(); }
  std::int64_t in_columns() const {
    return channels() + out_columns() + value_heads + decay_columns();
  }

  /// As it lies in every store. An anchor: the state [value_heads][key_dim][value_dim], then what
  /// was convolved at the last taps - 1 positions [taps - 1][channels()], oldest first; zeros
  /// before position 0. A journal: keys [key_heads][key_dim], writes [value_heads][value_dim],
  /// decays [decay_columns()], and what was convolved [channels()]. Decays are the logarithm since
  /// the chunk began, this row's included; by channel what is left behind this row, e^g.
  std::int64_t anchor_values() const {
    return value_heads * key_dim * value_dim + (taps - 1) * channels();
  }
  std::int64_t kept_decays_at() const { return key_heads * key_dim + out_columns(); }
  std::int64_t kept_convolved_at() const { return kept_decays_at() + decay_columns(); }
  std::int64_t journal_values() const { return kept_convolved_at() + channels(); }
};

}  // namespace dendrite
