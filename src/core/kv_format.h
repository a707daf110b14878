#pragma once

#include <cstdint>

namespace dendrite {

/// How K and V are kept in pages. The numbers are those of snapshot files.
enum class KvFormat : std::uint8_t { kF32 = 0, kBF16 = 2 };

constexpr std::int64_t size_of(KvFormat format) {
  return format == KvFormat::kF32 ? 4 : 2;
}

constexpr const char* name_of(KvFormat format) {
  return format == KvFormat::kF32 ? "f32" : "bf16";
}

}  // namespace dendrite
