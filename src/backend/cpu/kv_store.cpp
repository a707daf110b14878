#include "backend/cpu/kv_store.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "backend/checks.h"
#include "core/dtype.h"
#include "dendrite/error.h"

namespace dendrite::cpu {
namespace {

// A guarded store: [canary][page][canary, guard] for each page.
constexpr std::int64_t kBefore = 64;
constexpr std::int64_t kAfter = 64 + 448;

KvLayout make_layout(const KvShape& shape) {
  check_kv_shape(shape);
  KvLayout layout;
  layout.format = shape.format;
  layout.head_dim = shape.head_dim;
  layout.padded_dim = (shape.head_dim + kHeadPad - 1) / kHeadPad * kHeadPad;
  layout.page_tokens = shape.page_tokens;
  while ((std::int64_t{1} << layout.page_shift) < shape.page_tokens) ++layout.page_shift;
  const std::int64_t size = size_of(shape.format);
  const std::int64_t k_dims =
      shape.format == KvFormat::kBF16 ? (shape.head_dim + 1) / 2 * 2 : shape.head_dim;
  const auto round_up = [](std::int64_t bytes) { return (bytes + 63) / 64 * 64; };
  layout.v_offset = round_up(k_dims * shape.page_tokens * size);
  layout.head_stride = layout.v_offset + round_up(layout.padded_dim * shape.page_tokens * size);
  layout.layer_stride = layout.head_stride * shape.kv_heads;
  layout.page_stride = layout.layer_stride * shape.layers;
  if (shape.guarded) layout.page_stride += kBefore + kAfter;
  return layout;
}

}  // namespace

CpuKvStore::CpuKvStore(const KvShape& shape)
    : shape_(shape),
      layout_(make_layout(shape)),
      before_(shape.guarded ? kBefore : 0),
      memory_(layout_.page_stride * shape.pages) {}

KvStore::RawLayout CpuKvStore::raw_layout() const {
  const std::int64_t after = shape_.guarded ? kAfter : 0;
  return {1, before_, layout_.page_stride - before_ - after, after};
}

void CpuKvStore::read_raw(std::int32_t page, std::span<std::byte> out) const {
  check_raw("read_raw", *this, page, out.size());
  std::memcpy(out.data(), raw(page), out.size());
}

void CpuKvStore::write_raw(std::int32_t page, std::span<const std::byte> in) {
  check_raw("write_raw", *this, page, in.size());
  std::memcpy(raw(page), in.data(), in.size());
}

void CpuKvStore::copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) {
  check_page("copy_slots", shape_, from, tokens);
  check_page("copy_slots", shape_, to, tokens);
  if (from == to) throw Error("copy_slots: from and to are both page " + std::to_string(from));
  // K: the first `tokens` words of each step of page_tokens words. V: whole token (pair)s.
  const bool pairs = shape_.format == KvFormat::kBF16;
  const std::int64_t k_steps = pairs ? (shape_.head_dim + 1) / 2 : shape_.head_dim;
  const auto k_bytes = static_cast<std::size_t>(tokens) * 4;
  const std::int64_t v_steps = pairs ? (tokens + 1) / 2 : tokens;
  const auto v_bytes = static_cast<std::size_t>(v_steps * layout_.padded_dim * 4);
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      const std::byte* source = at(from, layer, head);
      std::byte* target = at(to, layer, head);
      for (std::int64_t step = 0; step < k_steps; ++step) {
        const std::int64_t offset = step * shape_.page_tokens * 4;
        std::memcpy(target + offset, source + offset, k_bytes);
      }
      std::memcpy(target + layout_.v_offset, source + layout_.v_offset, v_bytes);
    }
  }
}

void CpuKvStore::read(std::int32_t page, std::int64_t layer, std::int32_t tokens,
                      std::span<float> k, std::span<float> v) const {
  check_page("read", shape_, page, tokens);
  check_page_values("read", shape_, layer, tokens, k.size(), v.size());
  const std::int64_t dim = shape_.head_dim;
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    const std::byte* keys = at(page, layer, head);
    const std::byte* values = keys + layout_.v_offset;
    for (std::int64_t token = 0; token < tokens; ++token) {
      float* k_out = k.data() + (token * shape_.kv_heads + head) * dim;
      float* v_out = v.data() + (token * shape_.kv_heads + head) * dim;
      for (std::int64_t i = 0; i < dim; ++i) {
        if (shape_.format == KvFormat::kF32) {
          std::memcpy(k_out + i, keys + (i * shape_.page_tokens + token) * 4, 4);
          std::memcpy(v_out + i, values + (token * layout_.padded_dim + i) * 4, 4);
        } else {
          BF16 bits;
          std::memcpy(&bits, keys + (i / 2 * shape_.page_tokens + token) * 4 + i % 2 * 2, 2);
          k_out[i] = to_f32(bits);
          std::memcpy(&bits, values + (token / 2 * layout_.padded_dim + i) * 4 + token % 2 * 2, 2);
          v_out[i] = to_f32(bits);
        }
      }
    }
  }
}

void CpuKvStore::write(std::int32_t page, std::int64_t layer, std::int32_t tokens,
                       std::span<const float> k, std::span<const float> v) {
  check_page("write", shape_, page, tokens);
  check_page_values("write", shape_, layer, tokens, k.size(), v.size());
  const std::int64_t dim = shape_.head_dim;
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    std::byte* keys = at(page, layer, head);
    std::byte* values = keys + layout_.v_offset;
    for (std::int64_t token = 0; token < tokens; ++token) {
      const float* k_in = k.data() + (token * shape_.kv_heads + head) * dim;
      const float* v_in = v.data() + (token * shape_.kv_heads + head) * dim;
      for (std::int64_t i = 0; i < dim; ++i) {
        if (shape_.format == KvFormat::kF32) {
          std::memcpy(keys + (i * shape_.page_tokens + token) * 4, k_in + i, 4);
          std::memcpy(values + (token * layout_.padded_dim + i) * 4, v_in + i, 4);
        } else {
          const BF16 k_bits = to_bf16(k_in[i]);
          std::memcpy(keys + (i / 2 * shape_.page_tokens + token) * 4 + i % 2 * 2, &k_bits, 2);
          const BF16 v_bits = to_bf16(v_in[i]);
          std::memcpy(values + (token / 2 * layout_.padded_dim + i) * 4 + token % 2 * 2, &v_bits,
                      2);
        }
      }
    }
  }
}

// Between the layout of pages (KvLayout) and that of snapshots, one kv head of one layer at a time.
// Both sides are a few KB and stay in L1. Values move as bits, one of 4 bytes or two of 2 bytes at
// a time; bf16 heads of an odd dim go value by value.

namespace {

template <typename T>
void load(T& value, const std::byte* from) {
  std::memcpy(&value, from, sizeof value);
}
template <typename T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

/// out[column][row] = in[row][column] of 4-byte words; strides in words.
void transpose(const std::byte* in, std::int64_t in_stride, std::byte* out, std::int64_t out_stride,
               std::int64_t rows, std::int64_t columns) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      std::uint32_t word;
      load(word, in + (row * in_stride + column) * 4);
      store(out + (column * out_stride + row) * 4, word);
    }
  }
}

/// Byte offsets of one bf16 value of a head in a page.
std::int64_t k_offset(const KvLayout& layout, std::int64_t token, std::int64_t i) {
  return (i / 2 * layout.page_tokens + token) * 4 + i % 2 * 2;
}
std::int64_t v_offset(const KvLayout& layout, std::int64_t token, std::int64_t i) {
  return layout.v_offset + (token / 2 * layout.padded_dim + i) * 4 + token % 2 * 2;
}

void export_keys(const KvLayout& layout, const std::byte* head, std::int64_t tokens,
                 std::byte* out) {
  const std::int64_t dim = layout.head_dim;
  if (layout.format == KvFormat::kF32) {
    transpose(head, layout.page_tokens, out, dim, dim, tokens);
  } else if (dim % 2 == 0) {
    transpose(head, layout.page_tokens, out, dim / 2, dim / 2, tokens);
  } else {
    for (std::int64_t token = 0; token < tokens; ++token) {
      for (std::int64_t i = 0; i < dim; ++i) {
        std::memcpy(out + (token * dim + i) * 2, head + k_offset(layout, token, i), 2);
      }
    }
  }
}

void import_keys(const KvLayout& layout, std::byte* head, const std::byte* in) {
  const std::int64_t dim = layout.head_dim;
  const std::int64_t tokens = layout.page_tokens;
  if (layout.format == KvFormat::kF32) {
    transpose(in, dim, head, tokens, tokens, dim);
  } else if (dim % 2 == 0) {
    transpose(in, dim / 2, head, tokens, tokens, dim / 2);
  } else {
    for (std::int64_t token = 0; token < tokens; ++token) {
      for (std::int64_t i = 0; i < dim; ++i) {
        std::memcpy(head + k_offset(layout, token, i), in + (token * dim + i) * 2, 2);
      }
    }
  }
}

void export_values(const KvLayout& layout, const std::byte* head, std::int64_t tokens,
                   std::byte* out) {
  const std::int64_t dim = layout.head_dim;
  if (layout.format == KvFormat::kF32) {
    for (std::int64_t token = 0; token < tokens; ++token) {
      std::memcpy(out + token * dim * 4, head + layout.v_offset + token * layout.padded_dim * 4,
                  static_cast<std::size_t>(dim) * 4);
    }
    return;
  }
  for (std::int64_t token = 0; token < tokens; token += 2) {  // a pair of tokens is a row of words
    const std::byte* pairs = head + v_offset(layout, token, 0);
    std::byte* even = out + token * dim * 2;
    std::byte* odd = even + dim * 2;
    const bool has_odd = token + 1 < tokens;
    for (std::int64_t i = 0; i < dim; ++i) std::memcpy(even + i * 2, pairs + i * 4, 2);
    for (std::int64_t i = 0; has_odd && i < dim; ++i) {
      std::memcpy(odd + i * 2, pairs + i * 4 + 2, 2);
    }
  }
}

void import_values(const KvLayout& layout, std::byte* head, const std::byte* in) {
  const std::int64_t dim = layout.head_dim;
  if (layout.format == KvFormat::kF32) {
    for (std::int64_t token = 0; token < layout.page_tokens; ++token) {
      std::memcpy(head + layout.v_offset + token * layout.padded_dim * 4, in + token * dim * 4,
                  static_cast<std::size_t>(dim) * 4);
    }
    return;
  }
  for (std::int64_t token = 0; token < layout.page_tokens; token += 2) {
    std::byte* pairs = head + v_offset(layout, token, 0);
    const std::byte* even = in + token * dim * 2;
    const std::byte* odd = even + dim * 2;
    for (std::int64_t i = 0; i < dim; ++i) {
      std::uint16_t low, high;
      load(low, even + i * 2);
      load(high, odd + i * 2);
      store(pairs + i * 4, static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high)
                                                                 << 16);
    }
  }
}

}  // namespace

void CpuKvStore::export_page(std::int32_t page, std::int32_t tokens,
                             std::span<std::byte> out) const {
  check_page("export_page", shape_, page, std::max(tokens, 1));
  check_page_bytes("export_page", shape_, out.size());
  const std::int64_t token_bytes = shape_.head_dim * size_of(shape_.format);
  const std::int64_t half = token_bytes * shape_.page_tokens;  // K or V of a head
  const auto rest = static_cast<std::size_t>(half - tokens * token_bytes);
  std::byte* to = out.data();
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head, to += 2 * half) {
      export_keys(layout_, at(page, layer, head), tokens, to);
      export_values(layout_, at(page, layer, head), tokens, to + half);
      std::memset(to + tokens * token_bytes, 0, rest);
      std::memset(to + half + tokens * token_bytes, 0, rest);
    }
  }
}

void CpuKvStore::import_page(std::int32_t page, std::span<const std::byte> in) {
  check_page("import_page", shape_, page, 1);
  check_page_bytes("import_page", shape_, in.size());
  const std::int64_t half = shape_.head_dim * size_of(shape_.format) * shape_.page_tokens;
  const std::byte* from = in.data();
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head, from += 2 * half) {
      import_keys(layout_, at(page, layer, head), from);
      import_values(layout_, at(page, layer, head), from + half);
    }
  }
}

}  // namespace dendrite::cpu
