#include "backend/cpu/kv_layout.h"

#include <cstring>

#include "backend/checks.h"
#include "core/dtype.h"
#include "quant/e4m3.h"

namespace dendrite::cpu {
namespace {

/// K: words that are a step apart. A last one may have a value alone: beside it is zero, which is
/// multiplied, too.
template <typename Word, typename Value>
void get_key(const KvLayout& layout, const std::byte* head, std::int64_t token, std::byte* out) {
  const std::byte* from = head + token * static_cast<std::int64_t>(sizeof(Word));
  const std::int64_t step = layout.page_tokens * static_cast<std::int64_t>(sizeof(Word));
  const std::byte* end = out + layout.head_dim * static_cast<std::int64_t>(sizeof(Value));
  for (; end - out >= static_cast<std::int64_t>(sizeof(Word)); out += sizeof(Word), from += step) {
    std::memcpy(out, from, sizeof(Word));
  }
  if (out != end) std::memcpy(out, from, sizeof(Value));
}
template <typename Word, typename Value>
void put_key(const KvLayout& layout, std::byte* head, std::int64_t token, const std::byte* in) {
  std::byte* to = head + token * static_cast<std::int64_t>(sizeof(Word));
  const std::int64_t step = layout.page_tokens * static_cast<std::int64_t>(sizeof(Word));
  const std::byte* end = in + layout.head_dim * static_cast<std::int64_t>(sizeof(Value));
  for (; end - in >= static_cast<std::int64_t>(sizeof(Word)); in += sizeof(Word), to += step) {
    std::memcpy(to, in, sizeof(Word));
  }
  if (in == end) return;
  std::memset(to, 0, sizeof(Word));
  std::memcpy(to, in, sizeof(Value));
}

/// V: values of a token that are kTokens values apart, those of so many tokens in turns.
template <typename Value, std::int64_t kTokens>
std::int64_t value_offset(const KvLayout& layout, std::int64_t token) {
  return layout.v_offset + (token / kTokens * layout.padded_dim * kTokens + token % kTokens) *
                               static_cast<std::int64_t>(sizeof(Value));
}
template <typename Value, std::int64_t kTokens>
void get_value(const KvLayout& layout, const std::byte* head, std::int64_t token, std::byte* out) {
  const std::byte* from = head + value_offset<Value, kTokens>(layout, token);
  for (std::int64_t i = 0; i < layout.head_dim; ++i) {
    std::memcpy(out, from, sizeof(Value));
    out += sizeof(Value);
    from += kTokens * sizeof(Value);
  }
}
template <typename Value, std::int64_t kTokens>
void put_value(const KvLayout& layout, std::byte* head, std::int64_t token, const std::byte* in) {
  std::byte* to = head + value_offset<Value, kTokens>(layout, token);
  for (std::int64_t i = 0; i < layout.head_dim; ++i) {
    std::memcpy(to, in, sizeof(Value));
    in += sizeof(Value);
    to += kTokens * sizeof(Value);
  }
}

}  // namespace

KvLayout make_layout(const KvShape& shape) {
  check_kv_shape(shape);
  const auto round_up = [](std::int64_t bytes) { return (bytes + 63) / 64 * 64; };
  KvLayout layout;
  layout.format = shape.format;
  layout.head_dim = shape.head_dim;
  layout.padded_dim = (shape.head_dim + kHeadPad - 1) / kHeadPad * kHeadPad;
  layout.page_tokens = shape.page_tokens;
  while ((std::int64_t{1} << layout.page_shift) < shape.page_tokens) ++layout.page_shift;
  layout.word_bytes = values_of_a_word(layout) * size_of(shape.format);
  layout.values_are_keys = shape.values_are_keys;
  layout.v_offset = round_up(key_steps(layout) * shape.page_tokens * layout.word_bytes);
  const std::int64_t values =
      shape.values_are_keys ? 0 : layout.padded_dim * shape.page_tokens * size_of(shape.format);
  layout.scales_offset = layout.v_offset + values;
  const std::int64_t scales =
      shape.format == KvFormat::kFP8 ? shape.vectors() * shape.page_tokens : 0;
  layout.head_stride = round_up(layout.scales_offset + scales);
  layout.layer_stride = layout.head_stride * shape.kv_heads;
  layout.page_stride = layout.layer_stride * shape.layers;
  return layout;
}

void get_vector(const KvLayout& layout, const std::byte* head, KvPart part, std::int64_t token,
                std::byte* out) {
  const bool k = part == KvPart::kK;
  switch (layout.format) {
    case KvFormat::kF32:
      return k ? get_key<std::uint32_t, float>(layout, head, token, out)
               : get_value<float, 1>(layout, head, token, out);
    case KvFormat::kBF16:
      return k ? get_key<std::uint32_t, BF16>(layout, head, token, out)
               : get_value<BF16, 2>(layout, head, token, out);
    case KvFormat::kFP8:
      k ? get_key<std::uint16_t, std::uint8_t>(layout, head, token, out)
        : get_value<std::uint8_t, 2>(layout, head, token, out);
      out[layout.head_dim] = head[scales_of(layout, part) + token];
  }
}

void put_vector(const KvLayout& layout, std::byte* head, KvPart part, std::int64_t token,
                const std::byte* in) {
  const bool k = part == KvPart::kK;
  switch (layout.format) {
    case KvFormat::kF32:
      return k ? put_key<std::uint32_t, float>(layout, head, token, in)
               : put_value<float, 1>(layout, head, token, in);
    case KvFormat::kBF16:
      return k ? put_key<std::uint32_t, BF16>(layout, head, token, in)
               : put_value<BF16, 2>(layout, head, token, in);
    case KvFormat::kFP8:
      k ? put_key<std::uint16_t, std::uint8_t>(layout, head, token, in)
        : put_value<std::uint8_t, 2>(layout, head, token, in);
      head[scales_of(layout, part) + token] = in[layout.head_dim];
  }
}

void widen_vector(KvFormat format, const std::byte* stored, std::span<float> out) {
  switch (format) {
    case KvFormat::kF32:
      std::memcpy(out.data(), stored, out.size_bytes());
      return;
    case KvFormat::kBF16:
      for (std::size_t i = 0; i < out.size(); ++i) {
        BF16 bits;
        std::memcpy(&bits, stored + 2 * i, 2);
        out[i] = to_f32(bits);
      }
      return;
    case KvFormat::kFP8:
      widen_e4m3(reinterpret_cast<const std::uint8_t*>(stored),
                 std::to_integer<std::uint8_t>(stored[out.size()]), out);
  }
}

void round_vector(KvFormat format, std::span<const float> values, std::byte* out) {
  switch (format) {
    case KvFormat::kF32:
      std::memcpy(out, values.data(), values.size_bytes());
      return;
    case KvFormat::kBF16:
      for (const float value : values) {
        const BF16 bits = to_bf16(value);
        std::memcpy(out, &bits, 2);
        out += 2;
      }
      return;
    case KvFormat::kFP8:
      out[values.size()] = std::byte{round_to_e4m3(values, reinterpret_cast<std::uint8_t*>(out))};
  }
}

}  // namespace dendrite::cpu
