#pragma once

#include <cstdint>
#include <string>

#include "backend/host_memory.h"

namespace dendrite {

/// Contexts are taken to be no longer, where memory is divided.
constexpr std::int64_t kLongContext = 32768;

/// What decides how many tokens a pool of pages is for.
struct KvPoolWish {
  std::int64_t kv_tokens = 0;  // asked for; 0: automatic
  std::int64_t page_tokens = 16;
  std::int64_t token_bytes = 0;
  std::int64_t weight_bytes = 0;
  std::int64_t max_positions = 0;
  std::string device;   // for messages
  DeviceMemory memory;  // with the weights loaded; or what was given of it
  bool given = false;   // and is to be filled
  /// The device takes memory for a pool when it is made, not when it is first used.
  bool taken_at_once = false;
  std::int64_t pass_bytes = 0;  // that passes will take beside it
};

/// Pages of the pool. Automatic: twice the weights, at least two contexts, and 512 MiB where the
/// pool is taken at once, 4 GiB where it grows as it is used; as far as the free memory goes: what
/// passes leave of it in the first case, half of it in the second. Of memory that was given: all
/// that passes leave.
/// Throws Error when 1024 tokens do not fit, or when what was asked for is more than is free.
std::int64_t pool_pages(const KvPoolWish& wish);

}  // namespace dendrite
