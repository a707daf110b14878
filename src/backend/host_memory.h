#pragma once

#include <cstdint>
#include <string>

namespace dendrite {

/// Memory of a device, in bytes, as it is now.
struct DeviceMemory {
  std::int64_t total = 0;
  std::int64_t free = 0;  // what may still be had
};

/// The host's, or what this process's control groups leave of it. Free is what the system says it
/// could give without swapping.
DeviceMemory host_memory();

/// "11.2 GiB", "512 MiB", "12 bytes"
std::string size_text(std::int64_t bytes);

/// Throws Error: `what` wanted so many bytes of `memory_of` ("device memory"), so many are free,
/// and what would help. `reason`: what the system said, or "".
[[noreturn]] void throw_out_of_memory(const std::string& what, std::int64_t wanted_bytes,
                                      const std::string& memory_of, const DeviceMemory& memory,
                                      const std::string& reason);

}  // namespace dendrite
