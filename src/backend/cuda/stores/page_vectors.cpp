#include "backend/cuda/stores/page_vectors.h"

#include <cstring>

#include "core/dtype.h"
#include "quant/e4m3.h"

namespace dendrite::cuda {

void PageVectors::widen(std::span<const std::byte> page, std::int64_t head, int part,
                        std::int64_t token, std::span<float> out) const {
  const std::int64_t vector = number(head, part, token);
  const std::byte* from = page.data() + values_at(vector);
  if (shape_.format == KvFormat::kFP8) {
    widen_e4m3(reinterpret_cast<const std::uint8_t*>(from),
               std::to_integer<std::uint8_t>(page[scale_at(vector)]), out);
    return;
  }
  const DType number = shape_.format == KvFormat::kF32 ? DType::kF32 : DType::kBF16;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = stored_value(from, number, static_cast<std::int64_t>(i));
  }
}

void PageVectors::round(std::span<const float> values, std::span<std::byte> page, std::int64_t head,
                        int part, std::int64_t token) const {
  const std::int64_t vector = number(head, part, token);
  std::byte* to = page.data() + values_at(vector);
  switch (shape_.format) {
    case KvFormat::kF32:
      std::memcpy(to, values.data(), values.size_bytes());
      return;
    case KvFormat::kBF16:
      for (const float value : values) {
        const BF16 bits = to_bf16(value);
        std::memcpy(to, &bits, 2);
        to += 2;
      }
      return;
    case KvFormat::kFP8:
      page[scale_at(vector)] =
          std::byte{round_to_e4m3(values, reinterpret_cast<std::uint8_t*>(to))};
  }
}

void PageVectors::join_scales(std::span<const std::byte> page, std::span<std::byte> out) const {
  const auto codes = static_cast<std::size_t>(shape_.head_dim);
  std::byte* to = out.data();
  for (std::int64_t vector = 0; vector < vectors(); ++vector) {
    std::memcpy(to, page.data() + values_at(vector), codes);
    to[codes] = page[scale_at(vector)];
    to += codes + 1;
  }
}

void PageVectors::split_scales(std::span<const std::byte> in, std::span<std::byte> page) const {
  const auto codes = static_cast<std::size_t>(shape_.head_dim);
  const std::byte* from = in.data();
  for (std::int64_t vector = 0; vector < vectors(); ++vector) {
    std::memcpy(page.data() + values_at(vector), from, codes);
    page[scale_at(vector)] = from[codes];
    from += codes + 1;
  }
}

}  // namespace dendrite::cuda
