#include "backend/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "backend/control_group.h"
#include "dendrite/error.h"

namespace dendrite {

DeviceMemory host_memory() {
  const auto page = static_cast<std::int64_t>(sysconf(_SC_PAGE_SIZE));
  DeviceMemory memory{static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * page,
                      static_cast<std::int64_t>(sysconf(_SC_AVPHYS_PAGES)) * page};
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    std::int64_t kilobytes = 0;
    std::string unit;
    if (key == "MemAvailable:" && file >> kilobytes) memory.free = kilobytes << 10;
    std::getline(file, unit);
  }
  const GroupLimits limits = group_limits();
  memory.total = std::min(memory.total, limits.memory_bytes.value_or(memory.total));
  memory.free = std::min(memory.free, limits.free_bytes.value_or(memory.free));
  return memory;
}

std::string size_text(std::int64_t bytes) {
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  if (bytes < kMiB) return std::to_string(bytes) + " bytes";
  if (bytes < (kMiB << 10)) return std::to_string(bytes / kMiB) + " MiB";
  const std::int64_t tenths = bytes / (kMiB << 10) * 10 + bytes % (kMiB << 10) * 10 / (kMiB << 10);
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " GiB";
}

void throw_out_of_memory(const std::string& what, std::int64_t wanted_bytes,
                         const std::string& memory_of, const DeviceMemory& memory,
                         const std::string& reason) {
  throw Error(what + ": " + size_text(wanted_bytes) + " of " + memory_of + " wanted, " +
              size_text(memory.free) + " of " + size_text(memory.total) + " free" +
              (reason.empty() ? "" : " (" + reason + ")") +
              "; a smaller pool of pages (kv_tokens, --kv-tokens) or a smaller model leaves more");
}

}  // namespace dendrite
