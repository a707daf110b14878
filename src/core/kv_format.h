#pragma once

#include <cstdint>

namespace dendrite {

/// How K and V are kept in pages. The numbers are those of snapshot files. kFP8: E4M3 with a power
/// of two for each vector (quant/e4m3.h).
enum class KvFormat : std::uint8_t { kF32 = 0, kBF16 = 2, kFP8 = 3 };

/// Bytes of one value.
constexpr std::int64_t size_of(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return 4;
    case KvFormat::kBF16:
      return 2;
    case KvFormat::kFP8:
      break;
  }
  return 1;
}

/// Bytes of K or V of one token and head, with what goes with the values.
constexpr std::int64_t vector_bytes(KvFormat format, std::int64_t head_dim) {
  return head_dim * size_of(format) + (format == KvFormat::kFP8 ? 1 : 0);
}

constexpr const char* name_of(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return "f32";
    case KvFormat::kBF16:
      return "bf16";
    case KvFormat::kFP8:
      break;
  }
  return "fp8";
}

}  // namespace dendrite
