#pragma once

#include <string>
#include <string_view>

#include "dendrite/error.h"
#include "dendrite_bridge.h"

namespace dendrite {

/// Throws what the bridge says about its latest failure, after `what` was being done.
inline void check_bridge(dn_status status, std::string_view what) {
  if (status >= DN_OK) return;
  throw Error(std::string(what) + ": " + dn_last_error());
}

/// Takes over a buffer of the bridge.
inline std::string take(dn_buffer buffer) {
  struct Free {
    dn_buffer buffer;
    ~Free() { dn_buffer_free(buffer); }
  } const owner{buffer};
  return std::string(reinterpret_cast<const char*>(buffer.data), buffer.size);
}

}  // namespace dendrite
