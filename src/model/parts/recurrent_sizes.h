#pragma once

#include <cstdint>

namespace dendrite {

/// Of a recurrent layer of any kind: what it keeps (see StateShape), and how wide what goes in and
/// what comes out is.
struct RecurrentSizes {
  std::int64_t anchor_values = 0;
  std::int64_t journal_values = 0;
  std::int64_t in_columns = 0;
  std::int64_t out_columns = 0;
};

/// `sizes`: DeltaNetSizes and their like.
template <class Sizes>
RecurrentSizes recurrent_sizes(const Sizes& sizes) {
  return {sizes.anchor_values(), sizes.journal_values(), sizes.in_columns(), sizes.out_columns()};
}

}  // namespace dendrite
