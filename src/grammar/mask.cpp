#include "grammar/mask.h"

#include <bit>

namespace dendrite {

TokenMask::TokenMask(std::vector<std::uint32_t> words) : words_(std::move(words)) {
  for (const std::uint32_t word : words_) count_ += std::popcount(word);
}

}  // namespace dendrite
