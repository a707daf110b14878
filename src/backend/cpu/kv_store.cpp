#include "backend/cpu/kv_store.h"

#include <cstring>
#include <string>

#include "dendrite/error.h"

namespace dendrite::cpu {
namespace {

KvLayout make_layout(const KvShape& shape) {
  const auto check = [](std::int64_t value, const char* name) {
    if (value <= 0) {
      throw Error("make_kv_store: " + std::string(name) + " is " + std::to_string(value) +
                  ", expected a positive number");
    }
  };
  check(shape.layers, "layers");
  check(shape.kv_heads, "kv_heads");
  check(shape.head_dim, "head_dim");
  check(shape.pages, "pages");
  if (shape.page_tokens != 8 && shape.page_tokens != 16 && shape.page_tokens != 32) {
    throw Error("make_kv_store: page_tokens is " + std::to_string(shape.page_tokens) +
                ", expected 8, 16 or 32");
  }
  if (shape.head_dim > kMaxHeadDim) {
    throw Error("make_kv_store: head_dim is " + std::to_string(shape.head_dim) +
                ", expected at most " + std::to_string(kMaxHeadDim));
  }
  if (shape.dtype == DType::kF16) throw Error("make_kv_store: dtype is f16, expected f32 or bf16");

  KvLayout layout;
  layout.dtype = shape.dtype;
  layout.head_dim = shape.head_dim;
  layout.padded_dim = (shape.head_dim + kHeadPad - 1) / kHeadPad * kHeadPad;
  layout.page_tokens = shape.page_tokens;
  while ((std::int64_t{1} << layout.page_shift) < shape.page_tokens) ++layout.page_shift;
  const std::int64_t size = size_of(shape.dtype);
  const std::int64_t k_dims =
      shape.dtype == DType::kBF16 ? (shape.head_dim + 1) / 2 * 2 : shape.head_dim;
  const auto round_up = [](std::int64_t bytes) { return (bytes + 63) / 64 * 64; };
  layout.v_offset = round_up(k_dims * shape.page_tokens * size);
  layout.head_stride = layout.v_offset + round_up(layout.padded_dim * shape.page_tokens * size);
  layout.layer_stride = layout.head_stride * shape.kv_heads;
  layout.page_stride = layout.layer_stride * shape.layers;
  return layout;
}

}  // namespace

CpuKvStore::CpuKvStore(const KvShape& shape)
    : shape_(shape), layout_(make_layout(shape)), memory_(layout_.page_stride * shape.pages) {}

void CpuKvStore::check_page(const char* op, std::int64_t page, std::int64_t tokens) const {
  if (page < 0 || page >= shape_.pages) {
    throw Error(std::string(op) + ": page is " + std::to_string(page) + ", expected 0.." +
                std::to_string(shape_.pages - 1));
  }
  if (tokens <= 0 || tokens > shape_.page_tokens) {
    throw Error(std::string(op) + ": tokens is " + std::to_string(tokens) + ", expected 1.." +
                std::to_string(shape_.page_tokens));
  }
}

void CpuKvStore::check_values(const char* op, std::int64_t layer, std::int32_t tokens,
                              std::size_t k, std::size_t v) const {
  if (layer < 0 || layer >= shape_.layers) {
    throw Error(std::string(op) + ": layer is " + std::to_string(layer) + ", expected 0.." +
                std::to_string(shape_.layers - 1));
  }
  const auto expected = static_cast<std::size_t>(tokens * shape_.kv_heads * shape_.head_dim);
  if (k < expected || v < expected) {
    throw Error(std::string(op) + ": k and v hold " + std::to_string(k) + " and " +
                std::to_string(v) + " values, expected " + std::to_string(expected));
  }
}

void CpuKvStore::copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) {
  check_page("copy_slots", from, tokens);
  check_page("copy_slots", to, tokens);
  if (from == to) throw Error("copy_slots: from and to are both page " + std::to_string(from));
  // K: the first `tokens` words of each step of page_tokens words. V: whole token (pair)s.
  const bool pairs = shape_.dtype == DType::kBF16;
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
  check_page("read", page, tokens);
  check_values("read", layer, tokens, k.size(), v.size());
  const std::int64_t dim = shape_.head_dim;
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    const std::byte* keys = at(page, layer, head);
    const std::byte* values = keys + layout_.v_offset;
    for (std::int64_t token = 0; token < tokens; ++token) {
      float* k_out = k.data() + (token * shape_.kv_heads + head) * dim;
      float* v_out = v.data() + (token * shape_.kv_heads + head) * dim;
      for (std::int64_t i = 0; i < dim; ++i) {
        if (shape_.dtype == DType::kF32) {
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
  check_page("write", page, tokens);
  check_values("write", layer, tokens, k.size(), v.size());
  const std::int64_t dim = shape_.head_dim;
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    std::byte* keys = at(page, layer, head);
    std::byte* values = keys + layout_.v_offset;
    for (std::int64_t token = 0; token < tokens; ++token) {
      const float* k_in = k.data() + (token * shape_.kv_heads + head) * dim;
      const float* v_in = v.data() + (token * shape_.kv_heads + head) * dim;
      for (std::int64_t i = 0; i < dim; ++i) {
        if (shape_.dtype == DType::kF32) {
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

}  // namespace dendrite::cpu
