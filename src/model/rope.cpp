#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <numeric>

#include "core/parallel.h"

namespace dendrite {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

/// base^(2i / rotary_dim) for each pair i. The power is rounded once, from double: nearest to what
/// any good f32 power gives.
std::vector<float> wave_numbers(double base, std::int64_t rotary_dim) {
  std::vector<float> out(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_dim);
    out[i] = static_cast<float>(
        std::pow(static_cast<double>(static_cast<float>(base)), static_cast<double>(exponent)));
  }
  return out;
}

/// The base of a sequence of exactly max_positions, as the reference computes it: theta, but for
/// the rounding of the two sums.
double dynamic_base(const RopeConfig& rope, std::int64_t rotary_dim) {
  const auto positions = static_cast<double>(rope.max_positions);
  const auto dim = static_cast<double>(rotary_dim);
  const double stretch = (rope.factor * positions / positions) - (rope.factor - 1.0);
  return rope.theta * std::pow(stretch, dim / (dim - 2.0));
}

/// The pair whose wave turns `rotations` times over the original length, as a real number.
double correction_dim(const RopeConfig& rope, double rotations, std::int64_t rotary_dim) {
  return static_cast<double>(rotary_dim) *
         std::log(static_cast<double>(rope.original_positions) / (rotations * kTwoPi)) /
         (2.0 * std::log(rope.theta));
}

/// YaRN: fast waves are kept, slow ones stretched by `factor`, with a ramp between.
/// Source: Peng et al. 2023, arXiv:2309.00071.
std::vector<float> yarn_inv_freq(const RopeConfig& rope, std::int64_t rotary_dim) {
  double low = correction_dim(rope, rope.beta_fast, rotary_dim);
  double high = correction_dim(rope, rope.beta_slow, rotary_dim);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rotary_dim - 1));
  if (low == high) high += 0.001;

  std::vector<float> out = wave_numbers(rope.theta, rotary_dim);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float ramp =
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float kept = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
    const float stretched_freq = 1.0f / (static_cast<float>(rope.factor) * out[i]);
    const float kept_freq = 1.0f / out[i];
    out[i] = stretched_freq * (1.0f - kept) + kept_freq * kept;
  }
  return out;
}

/// Llama 3.1: as YaRN in spirit, with the borders given as wavelengths.
void stretch_llama3(std::vector<float>& freqs, const RopeConfig& rope) {
  const auto original = static_cast<double>(rope.original_positions);
  const auto longest_kept = static_cast<float>(original / rope.high_freq_factor);
  const auto shortest_stretched = static_cast<float>(original / rope.low_freq_factor);
  const auto factor = static_cast<float>(rope.factor);
  for (float& freq : freqs) {
    const float wavelength = (1.0f / freq) * static_cast<float>(kTwoPi);
    if (wavelength > shortest_stretched) {
      freq /= factor;
    } else if (wavelength >= longest_kept && longest_kept < shortest_stretched) {
      const float smooth = ((1.0f / wavelength) * static_cast<float>(original) -
                            static_cast<float>(rope.low_freq_factor)) /
                           static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
      freq = (1.0f - smooth) * freq / factor + smooth * freq;
    }
  }
}

/// 0.1 * mscale * ln(factor) + 1
double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

}  // namespace

std::optional<std::int64_t> RopeConfig::position_limit() const {
  if (type == RopeType::kDynamic) return max_positions;
  if (type == RopeType::kLongRope && max_positions > original_positions) return original_positions;
  return std::nullopt;
}

std::vector<float> inv_freq(const RopeConfig& rope, std::int64_t rotary_dim) {
  if (rope.type == RopeType::kYarn) return yarn_inv_freq(rope, rotary_dim);
  const double base = rope.type == RopeType::kDynamic ? dynamic_base(rope, rotary_dim) : rope.theta;
  std::vector<float> freqs = wave_numbers(base, rotary_dim);
  for (float& freq : freqs) freq = 1.0f / freq;
  if (rope.type == RopeType::kProportional) {
    const auto dims = static_cast<double>(rotary_dim);
    const auto rotated = static_cast<std::size_t>(rope.rotated_part * dims / 2);
    std::fill(freqs.begin() + static_cast<std::ptrdiff_t>(rotated), freqs.end(), 0.0F);
  }
  if (rope.type == RopeType::kLinear || rope.type == RopeType::kProportional) {
    for (float& freq : freqs) freq /= static_cast<float>(rope.factor);
  }
  if (rope.type == RopeType::kLlama3) stretch_llama3(freqs, rope);
  if (rope.type == RopeType::kFactors || rope.type == RopeType::kLongRope) {
    for (std::size_t i = 0; i < freqs.size(); ++i) freqs[i] /= rope.factors[i];
  }
  return freqs;
}

float attention_scaling(const RopeConfig& rope) {
  if (rope.type != RopeType::kYarn && rope.type != RopeType::kLongRope) return 1.0f;
  if (rope.attention_factor) return static_cast<float>(*rope.attention_factor);
  if (rope.type == RopeType::kLongRope) {
    if (rope.factor <= 1.0) return 1.0f;
    const auto original = static_cast<double>(rope.original_positions);
    return static_cast<float>(std::sqrt(1.0 + std::log(rope.factor) / std::log(original)));
  }
  if (rope.mscale != 0.0 && rope.mscale_all_dim != 0.0) {
    return static_cast<float>(yarn_mscale(rope.factor, rope.mscale) /
                              yarn_mscale(rope.factor, rope.mscale_all_dim));
  }
  return static_cast<float>(yarn_mscale(rope.factor, 1.0));
}

void fill_cos_sin(std::span<const float> inv_freq, float scaling,
                  std::span<const std::int64_t> positions, float* out) {
  const std::size_t pairs = inv_freq.size();
  for (const std::int64_t position : positions) {
    for (std::size_t i = 0; i < pairs; ++i) {
      const float angle = static_cast<float>(position) * inv_freq[i];
      out[i] = std::cos(angle) * scaling;
      out[pairs + i] = std::sin(angle) * scaling;
    }
    out += 2 * pairs;
  }
}

void RopeTable::fill(std::span<const std::int64_t> positions, float* out) {
  const std::int64_t dim = rotary_dim();
  for (const std::int64_t position : positions) {
    out = std::copy_n(block(position / kBlock).data() + position % kBlock * dim, dim, out);
  }
}

std::span<const float> RopeTable::block(std::int64_t index) {
  const auto at = static_cast<std::size_t>(index);
  if (at >= blocks_.size()) blocks_.resize(at + 1);
  if (blocks_[at].empty()) make(at);
  return blocks_[at];
}

void RopeTable::make(std::size_t index) {
  std::vector<std::int64_t> positions(kBlock);
  std::iota(positions.begin(), positions.end(), static_cast<std::int64_t>(index) * kBlock);
  blocks_[index].resize(static_cast<std::size_t>(kBlock * rotary_dim()));
  fill_cos_sin(inv_freq_, scaling_, positions, blocks_[index].data());
}

void RopeTable::prepare(std::int64_t count, const ThreadPool& workers) {
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  blocks_.resize(std::max(blocks_.size(), static_cast<std::size_t>(blocks)));
  workers.parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      if (blocks_[i].empty()) make(i);
    }
  });
}

}  // namespace dendrite
