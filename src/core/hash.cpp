#include "core/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace dendrite {

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace dendrite
