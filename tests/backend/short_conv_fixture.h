#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "recurrence_fixture.h"

// A short convolution with random weights.
namespace dendrite::testing_support {

class ShortConvFixture : public RecurrenceFixture<ShortConv> {
 public:
  ShortConvFixture(Backend& backend, const ShortConvSizes& shape, std::uint32_t seed,
                   bool bias = false)
      : RecurrenceFixture(backend, ShortConv{shape}, seed) {
    conv_ = random_.normal(op_.channels * op_.taps, 0.6F);
    op_.conv = to_device(conv_);
    if (!bias) return;
    bias_ = random_.normal(op_.channels);
    op_.bias = to_device(bias_);
  }

  /// In double precision: [rows, channels].
  std::vector<double> reference(std::span<const std::int64_t> rows) const {
    std::vector<double> out;
    for (std::int64_t t = 0; t < std::ssize(rows); ++t) {
      for (std::int64_t c = 0; c < op_.channels; ++c) {
        double sum = bias_.empty() ? 0 : at(bias_, c);
        for (std::int64_t j = 0; j < op_.taps; ++j) {
          const std::int64_t from = t - (op_.taps - 1) + j;
          sum += at(conv_, c * op_.taps + j) * input(rows, from, c) *
                 input(rows, from, 2 * op_.channels + c);
        }
        out.push_back(input(rows, t, op_.channels + c) * sum);
      }
    }
    return out;
  }

 private:
  void run_op(Backend& backend, const ShortConv& args) override { backend.short_conv(args); }

  std::vector<float> conv_, bias_;
};

}  // namespace dendrite::testing_support
