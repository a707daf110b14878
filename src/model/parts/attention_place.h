#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace dendrite {

/// Where a layer's attention finds what is its own.
struct AttentionPlace {
  std::size_t part = 0;    // of the store
  std::int64_t layer = 0;  // of that part
  std::size_t plan = 0;    // of a pass's plans
  std::size_t angles = 0;  // of a pass's tables: [tokens, rotary_dim], see Rope::cos_sin
  /// The same, [tokens]: queries are multiplied by it behind RoPE.
  std::optional<std::size_t> query_factors{};
};

}  // namespace dendrite
