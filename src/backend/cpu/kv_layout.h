#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cpu/kernels.h"
#include "backend/kv_store.h"

// Where what is in the pages of a KvLayout, for all that is no kernel. `head`: where K of a page,
// layer and head begins.
namespace dendrite::cpu {

KvLayout make_layout(const KvShape& shape);

inline std::int64_t values_of_a_word(const KvLayout& layout) {
  return layout.format == KvFormat::kF32 ? 1 : 2;
}
/// Words of K of a token: dims, or pairs of them.
inline std::int64_t key_steps(const KvLayout& layout) {
  const std::int64_t values = values_of_a_word(layout);
  return (layout.head_dim + values - 1) / values;
}

enum class KvPart : std::uint8_t { kK, kV };
/// Those that pages hold.
inline std::span<const KvPart> parts_of(const KvLayout& layout) {
  static constexpr KvPart kParts[] = {KvPart::kK, KvPart::kV};
  return std::span(kParts).first(layout.values_are_keys ? 1 : 2);
}

/// From `head` to the scales of a part, one a token. FP8 only.
inline std::int64_t scales_of(const KvLayout& layout, KvPart part) {
  return layout.scales_offset + (part == KvPart::kK ? 0 : layout.page_tokens);
}

/// A token's K or V as it is stored, to and from a vector of vector_bytes() bytes: its values, and
/// in FP8 its scale behind them. Another token of a page may be written at the same time.
void get_vector(const KvLayout& layout, const std::byte* head, KvPart part, std::int64_t token,
                std::byte* out);
void put_vector(const KvLayout& layout, std::byte* head, KvPart part, std::int64_t token,
                const std::byte* in);

/// Such a vector as floats, and floats rounded once to one.
void widen_vector(KvFormat format, const std::byte* stored, std::span<float> out);
void round_vector(KvFormat format, std::span<const float> values, std::byte* out);

/// Room for any vector.
inline constexpr std::int64_t kMaxVectorBytes = kMaxHeadDim * 4;

}  // namespace dendrite::cpu
