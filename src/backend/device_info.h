#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dendrite {

struct DeviceInfo {
  std::string kind;     // "cpu" or "cuda"
  std::string name;     // "Intel(R) Xeon(R) ..."
  std::string kernels;  // instruction path in use: one of cpu_kernel_paths(), or "sm_90"
  int threads = 0;
  /// What bits depend on besides the model: device kind, path, numerics, cuBLASLt's version.
  std::string numerics_key;
  std::vector<std::string> warnings;  // what does not run as it should, one line each
};

/// Steps (a pass and its draws) as the device's own clock saw them.
struct DeviceTime {
  std::int64_t steps = 0;
  double busy_ms = 0;  // from a step's first kernel to its last, waits between kernels included
  double idle_ms = 0;  // from there to the next step's first kernel
};

}  // namespace dendrite
