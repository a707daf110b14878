#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "recurrence_fixture.h"

// A gated delta network with random weights.
namespace dendrite::testing_support {

/// What is read of a state is normed: where it is small next to what it is a sum of, the rounding
/// of f32 shows. States themselves are within 1e-5.
inline constexpr double kDeltaTolerance = 4e-5;

class DeltaFixture : public RecurrenceFixture<DeltaNet> {
 public:
  /// `gate_scale` of how much is written and decays.
  DeltaFixture(Backend& backend, const DeltaNetSizes& shape, std::uint32_t seed,
               float gate_scale = 1)
      : RecurrenceFixture(backend, DeltaNet{shape}, seed), gate_scale_(gate_scale) {
    op_.norm_eps = 1e-6F;
    conv_ = random_.normal(op_.channels() * op_.taps, 0.6F);
    decay_ = random_.normal(op_.value_heads);
    for (float& decay : decay_) decay = std::exp(decay);
    dt_bias_ = random_.normal(op_.decay_columns());
    for (float& bias : dt_bias_) bias -= 2;  // so that states last for some rows
    norm_ = random_.normal(op_.value_dim, 0.25F);
    for (float& weight : norm_) weight += 1;
    op_.conv = to_device(conv_);
    op_.decay = to_device(decay_);
    op_.dt_bias = to_device(dt_bias_);
    op_.norm = to_device(norm_);
  }

  struct Reference {
    std::vector<double> out;
    std::vector<double> state;  // [value_heads][key_dim][value_dim] behind the last row
  };
  /// Token by token in double precision.
  Reference reference(std::span<const std::int64_t> rows) const;

 private:
  void run_op(Backend& backend, const DeltaNet& args) override { backend.delta_net(args); }
  std::vector<float> random_rows(std::int64_t count) override {
    std::vector<float> made = RecurrenceFixture::random_rows(count);
    for (std::int64_t i = 0; i < std::ssize(made); ++i) {
      const std::int64_t column = i % width();
      if (column >= op_.writes_at() && column < op_.decays_at() + op_.decay_columns())
        made[static_cast<std::size_t>(i)] *= gate_scale_;
    }
    return made;
  }

  float gate_scale_;
  std::vector<float> conv_, decay_, dt_bias_, norm_;
};

inline DeltaFixture::Reference DeltaFixture::reference(std::span<const std::int64_t> rows) const {
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  const std::int64_t dk = op_.key_dim;
  const std::int64_t dv = op_.value_dim;
  Reference result;
  result.state.resize(static_cast<std::size_t>(op_.value_heads * dk * dv));
  for (std::int64_t t = 0; t < std::ssize(rows); ++t) {
    const auto input = [&](std::int64_t position, std::int64_t i) {
      return RecurrenceFixture::input(rows, position, i);
    };
    std::vector<double> mixed;
    for (std::int64_t c = 0; c < op_.channels(); ++c) {
      double sum = 0;
      for (std::int64_t j = 0; j < op_.taps; ++j) {
        sum += at(conv_, c * op_.taps + j) * input(t - (op_.taps - 1) + j, c);
      }
      mixed.push_back(silu(sum));
    }
    for (std::int64_t h = 0; h < op_.value_heads; ++h) {
      const std::int64_t key_head = h / (op_.value_heads / op_.key_heads);
      const auto unit = [&](std::int64_t first) {
        const auto begin = mixed.begin() + first;
        std::vector<double> x(begin, begin + dk);
        double square = 1e-6;
        for (const double value : x) square += value * value;
        for (double& value : x) value /= std::sqrt(square);
        return x;
      };
      const auto q = unit(key_head * dk);
      const auto k = unit((op_.key_heads + key_head) * dk);
      const double share = 1 / (1 + std::exp(-input(t, op_.writes_at() + h)));
      std::vector<double> factors;
      for (std::int64_t i = 0; i < dk; ++i) {
        const std::int64_t column = op_.by_channel ? h * dk + i : h;
        const double x = input(t, op_.decays_at() + column) + at(dt_bias_, column);
        const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
        factors.push_back(std::exp(-at(decay_, h) * softplus));
      }
      std::vector<double> o(static_cast<std::size_t>(dv));
      double square = 0;
      for (std::int64_t c = 0; c < dv; ++c) {
        const auto state = [&](std::int64_t i) -> double& {
          return result.state[static_cast<std::size_t>((h * dk + i) * dv + c)];
        };
        double read = 0;
        for (std::int64_t i = 0; i < dk; ++i) {
          state(i) *= at(factors, i);
          read += state(i) * at(k, i);
        }
        const double write = share * (at(mixed, 2 * op_.key_heads * dk + h * dv + c) - read);
        double sum = 0;
        for (std::int64_t i = 0; i < dk; ++i) {
          state(i) += at(k, i) * write;
          sum += state(i) * at(q, i);
        }
        o[static_cast<std::size_t>(c)] = sum / std::sqrt(static_cast<double>(dk));
        square += o[static_cast<std::size_t>(c)] * o[static_cast<std::size_t>(c)];
      }
      const double norm =
          1 / std::sqrt(square / static_cast<double>(dv) + static_cast<double>(op_.norm_eps));
      for (std::int64_t c = 0; c < dv; ++c) {
        const double gate = input(t, op_.gates_at() + h * dv + c);
        const double gated = op_.by_channel ? 1 / (1 + std::exp(-gate)) : silu(gate);
        result.out.push_back(at(norm_, c) * at(o, c) * norm * gated);
      }
    }
  }
  return result;
}

}  // namespace dendrite::testing_support
