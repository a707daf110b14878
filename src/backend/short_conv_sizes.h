#pragma once

#include <cstdint>

namespace dendrite {

/// Of a short convolution, and what a layer of it keeps (see StateShape).
struct ShortConvSizes {
  std::int64_t channels = 0;
  std::int64_t taps = 0;  // the last one being the row's own; at least 2

  std::int64_t out_columns() const { return channels; }
  std::int64_t in_columns() const { return 3 * channels; }

  /// As it lies in every store. An anchor: what was convolved at the last taps - 1 positions
  /// [taps - 1][channels], oldest first; zeros before position 0. A journal: what was convolved
  /// [channels].
  std::int64_t anchor_values() const { return (taps - 1) * channels; }
  std::int64_t journal_values() const { return channels; }
};

}  // namespace dendrite
