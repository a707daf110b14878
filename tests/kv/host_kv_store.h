#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "backend/backend.h"

namespace dendrite::testing {

/// A KvStore in host memory that takes the contract at its word: slots that nobody wrote hold NaN,
/// and copy_slots leaves NaN in the slots that it does not copy.
class HostKvStore final : public KvStore {
 public:
  explicit HostKvStore(const KvShape& shape)
      : shape_(shape),
        slot_values_(2 * shape.kv_heads * shape.head_dim),
        page_values_(shape.layers * shape.page_tokens * slot_values_),
        values_(static_cast<std::size_t>(shape.pages * (page_values_ + 2 * kBand)), kNothing) {}

  const KvShape& shape() const override { return shape_; }

  void copy_slots(std::int32_t from, std::int32_t to, std::int32_t tokens) override {
    check_page(from);
    check_page(to);
    if (from == to || tokens <= 0 || tokens > shape_.page_tokens) {
      throw std::logic_error("copy_slots: bad arguments");
    }
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      for (std::int32_t i = 0; i < shape_.page_tokens; ++i) {
        const float* source = slot(layer, from, i);
        float* target = slot(layer, to, i);
        for (std::int64_t j = 0; j < slot_values_; ++j) {
          target[j] = i < tokens ? source[j] : kNothing;
        }
      }
    }
  }

  void read(std::int32_t page, std::int64_t layer, std::int32_t tokens, std::span<float> k,
            std::span<float> v) const override {
    check_page(page);
    const std::int64_t half = slot_values_ / 2;
    for (std::int64_t i = 0; i < tokens; ++i) {
      const float* source = slot(layer, page, i);
      for (std::int64_t j = 0; j < half; ++j) {
        k[static_cast<std::size_t>(i * half + j)] = source[j];
        v[static_cast<std::size_t>(i * half + j)] = source[half + j];
      }
    }
  }

  void write(std::int32_t page, std::int64_t layer, std::int32_t tokens, std::span<const float> k,
             std::span<const float> v) override {
    check_page(page);
    const std::int64_t half = slot_values_ / 2;
    for (std::int64_t i = 0; i < tokens; ++i) {
      float* target = slot(layer, page, i);
      for (std::int64_t j = 0; j < half; ++j) {
        target[j] = k[static_cast<std::size_t>(i * half + j)];
        target[half + j] = v[static_cast<std::size_t>(i * half + j)];
      }
    }
  }

  void export_page(std::int32_t page, std::int32_t tokens,
                   std::span<std::byte> out) const override {
    for_page(page, [&](std::int64_t i, std::int64_t value, std::int64_t at) {
      const float bits = i < tokens ? values_[static_cast<std::size_t>(value)] : 0.0f;
      std::memcpy(out.data() + at, &bits, sizeof bits);
    });
  }
  void import_page(std::int32_t page, std::span<const std::byte> in) override {
    for_page(page, [&](std::int64_t, std::int64_t value, std::int64_t at) {
      std::memcpy(&values_[static_cast<std::size_t>(value)], in.data() + at, sizeof(float));
    });
  }

  RawLayout raw_layout() const override {
    const std::int64_t band = shape_.guarded ? kBand * 4 : 0;
    return {1, band, page_values_ * 4, band};
  }
  void read_raw(std::int32_t page, std::span<std::byte> out) const override {
    check_page(page);
    std::memcpy(out.data(), &values_[raw_begin(page)], out.size());
  }
  void write_raw(std::int32_t page, std::span<const std::byte> in) override {
    check_page(page);
    std::memcpy(&values_[raw_begin(page)], in.data(), in.size());
  }

  /// All K and V of a slot, in every layer, from one number: what a batch stores for a position.
  void store(std::int64_t slot_index, std::uint64_t what) {
    for_slot(slot_index, [&](float& value, std::int64_t i) { value = value_of(what, i); });
  }
  /// The slot holds exactly what store() put there for this number.
  bool holds(std::int64_t slot_index, std::uint64_t what) {
    bool same = true;
    for_slot(slot_index,
             [&](float& value, std::int64_t i) { same = same && value == value_of(what, i); });
    return same;
  }

 private:
  static constexpr std::int64_t kBand = 16;  // values around a page: 64 bytes
  static constexpr float kNothing = std::numeric_limits<float>::quiet_NaN();

  static float value_of(std::uint64_t what, std::int64_t i) {
    const std::uint64_t mixed =
        (what ^ (static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u)) * 0xD6E8FEB86659FD93u;
    return static_cast<float>(mixed >> 40);  // 24 bits: exact
  }

  /// f(slot of the page, index in values_, byte in the layout of snapshots) for each of its values.
  template <typename F>
  void for_page(std::int32_t page, F f) const {
    check_page(page);
    const std::int64_t dim = shape_.head_dim;
    std::int64_t at = 0;
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
        for (std::int64_t half = 0; half < 2; ++half) {
          for (std::int64_t i = 0; i < shape_.page_tokens; ++i) {
            for (std::int64_t d = 0; d < dim; ++d, at += 4) {
              const std::int64_t value = half * slot_values_ / 2 + head * dim + d;
              f(i, static_cast<std::int64_t>(offset(layer, page, i)) + value, at);
            }
          }
        }
      }
    }
  }

  template <typename F>
  void for_slot(std::int64_t slot_index, F f) {
    const auto page = static_cast<std::int32_t>(slot_index / shape_.page_tokens);
    check_page(page);
    std::int64_t i = 0;
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      float* values = slot(layer, page, slot_index % shape_.page_tokens);
      for (std::int64_t j = 0; j < slot_values_; ++j) f(values[j], i++);
    }
  }

  void check_page(std::int32_t page) const {
    if (page < 0 || page >= shape_.pages) throw std::logic_error("no such page");
  }
  std::size_t offset(std::int64_t layer, std::int64_t page, std::int64_t i) const {
    return static_cast<std::size_t>(page * (page_values_ + 2 * kBand) + kBand +
                                    (layer * shape_.page_tokens + i) * slot_values_);
  }
  std::size_t raw_begin(std::int32_t page) const {
    return offset(0, page, 0) - (shape_.guarded ? kBand : 0);
  }
  float* slot(std::int64_t layer, std::int64_t page, std::int64_t i) {
    return values_.data() + offset(layer, page, i);
  }
  const float* slot(std::int64_t layer, std::int64_t page, std::int64_t i) const {
    return values_.data() + offset(layer, page, i);
  }

  KvShape shape_;
  std::int64_t slot_values_;  // K and V of one slot and layer
  std::int64_t page_values_;
  std::vector<float> values_;
};

}  // namespace dendrite::testing
