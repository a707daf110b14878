#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "backend/group/exchange.h"

namespace dendrite::test {

/// Between devices whose memory is the host's, and whose ops are done when they return.
class HostExchange final : public group::Exchange {
 public:
  explicit HostExchange(bool writes_to_first) : writes_to_first_(writes_to_first) {}

  void sum(std::span<const Tensor> outs, std::span<const Tensor> parts,
           Backend::Store store) override {
    for (const Tensor& out : outs) {
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        const bool add = rank > 0 || store == Backend::Store::kAdd;
        for (std::int64_t row = 0; row < out.rows; ++row) {
          const float* const from = parts[rank].data + row * parts[rank].stride;
          float* const to = out.data + row * out.stride;
          for (std::int64_t i = 0; i < out.cols; ++i) to[i] = add ? to[i] + from[i] : from[i];
        }
      }
    }
  }

  void gather(std::span<const Columns> columns) override {
    for (const auto& [device, part, to] : columns) {
      EXPECT_EQ(part.data == to.data, writes_to_first_);
      if (writes_to_first_) continue;
      for (std::int64_t row = 0; row < part.rows; ++row) {
        std::copy_n(part.data + row * part.stride, part.cols, to.data + row * to.stride);
      }
    }
  }

  bool writes_to_first() const override { return writes_to_first_; }

  void share_draws(std::int64_t) override {}  // the host draws

 private:
  bool writes_to_first_;
};

}  // namespace dendrite::test
