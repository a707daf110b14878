#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/kv_store.h"

namespace dendrite::cuda {

/// The vectors of a page of one layer, as it lies in a CudaKvStore (KvView), on the host.
class PageVectors {
 public:
  explicit PageVectors(const KvShape& shape) : shape_(shape) {}

  /// K (0) or V (1) of a token and head as floats, and floats rounded once to it.
  void widen(std::span<const std::byte> page, std::int64_t head, int part, std::int64_t token,
             std::span<float> out) const;
  void round(std::span<const float> values, std::span<std::byte> page, std::int64_t head, int part,
             std::int64_t token) const;

  /// FP8: the same page as snapshots have it, each vector's scale behind its codes, and back.
  void join_scales(std::span<const std::byte> page, std::span<std::byte> out) const;
  void split_scales(std::span<const std::byte> in, std::span<std::byte> page) const;

 private:
  std::int64_t vectors() const { return shape_.vectors() * shape_.kv_heads * shape_.page_tokens; }
  std::int64_t number(std::int64_t head, int part, std::int64_t token) const {
    return (shape_.vectors() * head + part) * shape_.page_tokens + token;
  }
  /// Of a vector's values and of its scale, from the page.
  std::size_t values_at(std::int64_t number) const {
    return static_cast<std::size_t>(number * shape_.head_dim * size_of(shape_.format));
  }
  std::size_t scale_at(std::int64_t number) const {
    return values_at(vectors()) + static_cast<std::size_t>(number);
  }

  KvShape shape_;
};

}  // namespace dendrite::cuda
