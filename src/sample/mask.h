#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dendrite/types.h"

namespace dendrite {

/// Which tokens are allowed: bit t % 32 of word t / 32. Bits of a last word that are past the
/// vocabulary mean nothing.
using Mask = std::span<const std::uint32_t>;

constexpr std::size_t mask_words(std::size_t vocab) {
  return (vocab + 31) / 32;
}

/// Calls use(token) for what the mask allows, in ascending order.
template <typename Use>
void for_each_allowed(Mask mask, std::size_t vocab, Use use) {
  assert(mask.size() == mask_words(vocab));
  for (std::size_t word = 0; word < mask.size(); ++word) {
    for (std::uint32_t left = mask[word]; left != 0; left &= left - 1) {
      const std::size_t token = word * 32 + static_cast<std::size_t>(std::countr_zero(left));
      if (token >= vocab) return;
      use(static_cast<Token>(token));
    }
  }
}

}  // namespace dendrite
