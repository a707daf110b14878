#include "engine/kv_pool_size.h"

#include <algorithm>

#include "dendrite/error.h"

namespace dendrite {
namespace {

constexpr std::int64_t kLeastBytes = std::int64_t{512} << 20;  // of a device's own memory
constexpr std::int64_t kHostBytes = std::int64_t{4}
                                    << 30;  // pages that nobody touches cost nothing
constexpr std::int64_t kLeastTokens = 1024;

[[noreturn]] void refuse(const KvPoolWish& wish, std::int64_t tokens, std::int64_t most_tokens) {
  const bool automatic = wish.kv_tokens == 0;
  throw Error(
      "kv_tokens is " + (automatic ? "automatic" : std::to_string(tokens)) + ": a token takes " +
      size_text(wish.token_bytes) + ", and " + size_text(wish.memory.free) + " of " +
      size_text(wish.memory.total) + " of " + wish.device + " are free beside the weights" +
      (automatic && wish.pass_bytes > 0 ? ", of which passes may take " + size_text(wish.pass_bytes)
                                        : "") +
      "; there is room for " + std::to_string(most_tokens) + " tokens, expected " +
      (automatic ? "at least " + std::to_string(tokens) + " (or kv_tokens, --kv-tokens)"
                 : "a kv_tokens (--kv-tokens) of at most that") +
      ", or a smaller model");
}

}  // namespace

std::int64_t pool_pages(const KvPoolWish& wish) {
  const auto room = [&](std::int64_t bytes) {
    return std::max<std::int64_t>(bytes, 0) / wish.token_bytes / wish.page_tokens *
           wish.page_tokens;
  };
  std::int64_t tokens = wish.kv_tokens;
  if (tokens > 0) {
    if (tokens > room(wish.memory.free)) refuse(wish, tokens, room(wish.memory.free));
  } else {
    const std::int64_t left = wish.memory.free - wish.pass_bytes;
    const std::int64_t context = std::min(wish.max_positions, kLongContext) * wish.token_bytes;
    const std::int64_t least = wish.taken_at_once ? kLeastBytes : kHostBytes;
    const std::int64_t wanted = std::max({2 * wish.weight_bytes, least, 2 * context});
    tokens = wish.given ? room(left)
                        : std::min(room(wanted), room(wish.taken_at_once ? left : left / 2));
    if (tokens < kLeastTokens) tokens = kLeastTokens;
    if (tokens > room(left)) refuse(wish, tokens, room(left));
  }
  return (tokens + wish.page_tokens - 1) / wish.page_tokens;
}

}  // namespace dendrite
