#include "backend/cpu/kv_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "backend/checks.h"
#include "backend/cpu/kv_layout.h"
#include "dendrite/error.h"

namespace dendrite::cpu {
namespace {

// A guarded store: [canary][page][canary, guard] for each page.
constexpr std::int64_t kBefore = 64;
constexpr std::int64_t kAfter = 64 + 448;

KvLayout layout_of(const KvShape& shape) {
  KvLayout layout = make_layout(shape);
  if (shape.guarded) layout.page_stride += kBefore + kAfter;
  return layout;
}

}  // namespace

CpuKvStore::CpuKvStore(const KvShape& shape)
    : shape_(shape),
      layout_(layout_of(shape)),
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
  const std::int64_t word = layout_.word_bytes;
  const std::int64_t values = values_of_a_word(layout_);
  const std::int64_t k_steps = key_steps(layout_);
  const auto k_bytes = static_cast<std::size_t>(tokens * word);
  const auto v_bytes =
      static_cast<std::size_t>((tokens + values - 1) / values * layout_.padded_dim * word);
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      const std::byte* source = at(from, layer, head);
      std::byte* target = at(to, layer, head);
      for (std::int64_t step = 0; step < k_steps; ++step) {
        const std::int64_t offset = step * shape_.page_tokens * word;
        std::memcpy(target + offset, source + offset, k_bytes);
      }
      if (!shape_.values_are_keys) {
        std::memcpy(target + layout_.v_offset, source + layout_.v_offset, v_bytes);
      }
      if (shape_.format != KvFormat::kFP8) continue;
      for (const KvPart part : parts_of(layout_)) {
        const std::int64_t offset = scales_of(layout_, part);
        std::memcpy(target + offset, source + offset, static_cast<std::size_t>(tokens));
      }
    }
  }
}

void CpuKvStore::read(std::int32_t page, std::int64_t layer, std::int32_t tokens,
                      std::span<float> k, std::span<float> v) const {
  check_page("read", shape_, page, tokens);
  check_page_values("read", shape_, layer, tokens, k.size(), v.size());
  const auto dim = static_cast<std::size_t>(shape_.head_dim);
  std::array<std::byte, kMaxVectorBytes> stored;
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    for (std::int64_t token = 0; token < tokens; ++token) {
      const auto first = static_cast<std::size_t>(token * shape_.kv_heads + head) * dim;
      for (const KvPart part : parts_of(layout_)) {
        const std::span<float> out = part == KvPart::kK ? k : v;
        get_vector(layout_, at(page, layer, head), part, token, stored.data());
        widen_vector(shape_.format, stored.data(), out.subspan(first, dim));
      }
    }
  }
  if (shape_.values_are_keys)
    std::copy_n(k.begin(), tokens * shape_.kv_heads * shape_.head_dim, v.begin());
}

void CpuKvStore::write(std::int32_t page, std::int64_t layer, std::int32_t tokens,
                       std::span<const float> k, std::span<const float> v) {
  check_page("write", shape_, page, tokens);
  check_page_values("write", shape_, layer, tokens, k.size(),
                    shape_.values_are_keys ? k.size() : v.size());
  const auto dim = static_cast<std::size_t>(shape_.head_dim);
  std::array<std::byte, kMaxVectorBytes> stored;
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    for (std::int64_t token = 0; token < tokens; ++token) {
      const auto first = static_cast<std::size_t>(token * shape_.kv_heads + head) * dim;
      for (const KvPart part : parts_of(layout_)) {
        const std::span<const float> in = part == KvPart::kK ? k : v;
        round_vector(shape_.format, in.subspan(first, dim), stored.data());
        put_vector(layout_, at(page, layer, head), part, token, stored.data());
      }
    }
  }
}

// A head of a page is a few KB and stays in L1 while its vectors are copied.

void CpuKvStore::export_page(std::int32_t page, std::int32_t tokens,
                             std::span<std::byte> out) const {
  check_page("export_page", shape_, page, std::max(tokens, 1));
  check_page_bytes("export_page", shape_, out.size());
  const std::int64_t stride = shape_.vector_bytes();
  std::byte* to = out.data();
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      for (const KvPart part : parts_of(layout_)) {
        for (std::int64_t token = 0; token < tokens; ++token) {
          get_vector(layout_, at(page, layer, head), part, token, to + token * stride);
        }
        std::memset(to + tokens * stride, 0,
                    static_cast<std::size_t>((shape_.page_tokens - tokens) * stride));
        to += shape_.page_tokens * stride;
      }
    }
  }
}

void CpuKvStore::import_page(std::int32_t page, std::span<const std::byte> in) {
  check_page("import_page", shape_, page, 1);
  check_page_bytes("import_page", shape_, in.size());
  const std::int64_t stride = shape_.vector_bytes();
  const std::byte* from = in.data();
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      for (const KvPart part : parts_of(layout_)) {
        for (std::int64_t token = 0; token < shape_.page_tokens; ++token, from += stride) {
          put_vector(layout_, at(page, layer, head), part, token, from);
        }
      }
    }
  }
}

}  // namespace dendrite::cpu
