#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "recurrence_fixture.h"

// A Mamba-2 layer with random weights.
namespace dendrite::testing_support {

/// What is read of a state is normed: see kDeltaTolerance. States themselves are within 1e-5.
inline constexpr double kMambaTolerance = 4e-5;

class MambaFixture : public RecurrenceFixture<Mamba> {
 public:
  /// `step_scale` of dt as it comes in.
  MambaFixture(Backend& backend, const MambaSizes& shape, std::uint32_t seed, float step_scale = 1)
      : RecurrenceFixture(backend, Mamba{shape}, seed), step_scale_(step_scale) {
    op_.norm_eps = 1e-5F;
    op_.least_dt = 0.02F;
    op_.most_dt = 2.5F;
    conv_ = random_.normal(op_.channels() * op_.taps, 0.6F);
    conv_bias_ = random_.normal(op_.channels(), 0.3F);
    decay_ = random_.normal(op_.heads);
    for (float& decay : decay_) decay = std::exp(decay);
    dt_bias_ = random_.normal(op_.heads);
    for (float& bias : dt_bias_) bias -= 2;  // so that states last for some rows
    skip_ = random_.normal(op_.heads);
    norm_ = random_.normal(op_.out_columns(), 0.25F);
    for (float& weight : norm_) weight += 1;
    op_.conv = to_device(conv_);
    op_.conv_bias = to_device(conv_bias_);
    op_.decay = to_device(decay_);
    op_.dt_bias = to_device(dt_bias_);
    op_.skip = to_device(skip_);
    op_.norm = to_device(norm_);
  }

  void leave_out_bias() {
    std::fill(conv_bias_.begin(), conv_bias_.end(), 0.0F);
    op_.conv_bias = nullptr;
  }

  struct Reference {
    std::vector<double> out;
    std::vector<double> state;  // [heads][state_dim][head_dim] behind the last row
  };
  /// Token by token in double precision.
  Reference reference(std::span<const std::int64_t> rows) const;

 private:
  void run_op(Backend& backend, const Mamba& args) override { backend.mamba(args); }
  std::vector<float> random_rows(std::int64_t count) override {
    std::vector<float> made = RecurrenceFixture::random_rows(count);
    for (std::int64_t i = 0; i < std::ssize(made); ++i) {
      if (i % width() >= width() - op_.heads) made[static_cast<std::size_t>(i)] *= step_scale_;
    }
    return made;
  }

  float step_scale_;
  std::vector<float> conv_, conv_bias_, decay_, dt_bias_, skip_, norm_;
};

inline MambaFixture::Reference MambaFixture::reference(std::span<const std::int64_t> rows) const {
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  const std::int64_t cols = op_.out_columns();
  const std::int64_t of_group = cols / op_.groups;
  Reference result;
  result.state.resize(static_cast<std::size_t>(op_.state_values()));
  for (std::int64_t t = 0; t < std::ssize(rows); ++t) {
    std::vector<double> convolved;
    for (std::int64_t c = 0; c < op_.channels(); ++c) {
      double sum = at(conv_bias_, c);
      for (std::int64_t j = 0; j < op_.taps; ++j) {
        sum += at(conv_, c * op_.taps + j) * input(rows, t - (op_.taps - 1) + j, cols + c);
      }
      convolved.push_back(silu(sum));
    }
    std::vector<double> gated;
    for (std::int64_t h = 0; h < op_.heads; ++h) {
      const std::int64_t b = cols + h / (op_.heads / op_.groups) * op_.state_dim;
      const std::int64_t c = b + op_.group_columns();
      const double x = input(rows, t, cols + op_.channels() + h) + at(dt_bias_, h);
      const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
      const double step =
          std::clamp(softplus, static_cast<double>(op_.least_dt), static_cast<double>(op_.most_dt));
      const double factor = std::exp(-at(decay_, h) * step);
      for (std::int64_t p = 0; p < op_.head_dim; ++p) {
        const std::int64_t column = h * op_.head_dim + p;
        double y = at(skip_, h) * at(convolved, column);
        for (std::int64_t n = 0; n < op_.state_dim; ++n) {
          double& state =
              result.state[static_cast<std::size_t>((h * op_.state_dim + n) * op_.head_dim + p)];
          state = factor * state + at(convolved, b + n) * step * at(convolved, column);
          y += state * at(convolved, c + n);
        }
        gated.push_back(y * silu(input(rows, t, column)));
      }
    }
    for (std::int64_t i = 0; i < cols; ++i) {
      double square = 0;
      for (std::int64_t j = 0; j < of_group; ++j) {
        const double value = at(gated, i / of_group * of_group + j);
        square += value * value;
      }
      const double mean = square / static_cast<double>(of_group);
      result.out.push_back(at(norm_, i) * at(gated, i) /
                           std::sqrt(mean + static_cast<double>(op_.norm_eps)));
    }
  }
  return result;
}

}  // namespace dendrite::testing_support
