#pragma once

#include <cstdint>
#include <string>

namespace dendrite {

/// How a model computes. kF32: every product in f32, K and V stored in f32. kBF16: products of
/// bf16 values summed in f32 where the device has such an instruction (else f32 activations, which
/// is more exact); K and V stored in bf16; the residual stream, norms, RoPE and softmax in f32.
/// kF16: weights stored in f16, everything else as in kF32.
enum class ComputeType : std::uint8_t { kF32, kBF16, kF16 };

constexpr const char* name_of(ComputeType type) {
  switch (type) {
    case ComputeType::kF32:
      return "f32";
    case ComputeType::kBF16:
      return "bf16";
    case ComputeType::kF16:
      return "f16";
  }
  return "?";
}

struct DeviceInfo {
  std::string kind;     // "cpu" or "cuda"
  std::string name;     // "Intel(R) Xeon(R) ..."
  std::string kernels;  // instruction path in use: one of cpu_kernel_paths(), or "sm_90"
  int threads = 0;
  /// What bits depend on besides the model: device kind, path, compute type, cuBLASLt's version.
  std::string numerics_key;
};

/// Steps (a pass and its draws) as the device's own clock saw them.
struct DeviceTime {
  std::int64_t steps = 0;
  double busy_ms = 0;  // from a step's first kernel to its last, waits between kernels included
  double idle_ms = 0;  // from there to the next step's first kernel
};

}  // namespace dendrite
