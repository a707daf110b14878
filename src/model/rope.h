#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace dendrite {

class ThreadPool;

enum class RopeType : std::uint8_t {
  kDefault,
  kLinear,
  kDynamic,
  kYarn,
  kLlama3,
  kFactors,
  kLongRope,
  kProportional
};

constexpr const char* name_of(RopeType type) {
  switch (type) {
    case RopeType::kDefault:
      return "default";
    case RopeType::kLinear:
      return "linear";
    case RopeType::kDynamic:
      return "dynamic";
    case RopeType::kYarn:
      return "yarn";
    case RopeType::kLlama3:
      return "llama3";
    case RopeType::kFactors:
      return "factors";
    case RopeType::kLongRope:
      return "longrope";
    case RopeType::kProportional:
      return "proportional";
  }
  return "?";
}

/// How positions turn into angles. A field that a type does not name is not read by it.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;             // linear, dynamic, yarn, llama3, proportional
  std::int64_t max_positions = 0;  // dynamic: positions below this are as in kDefault
  /// yarn, llama3, longrope: the length before the context was extended.
  std::int64_t original_positions = 0;
  double low_freq_factor = 1.0;                           // llama3
  double high_freq_factor = 4.0;                          // llama3
  std::optional<double> attention_factor = std::nullopt;  // yarn, longrope
  double mscale = 0.0;                                    // yarn; 0: not given
  double mscale_all_dim = 0.0;                            // yarn; 0: not given
  double beta_fast = 32.0;                                // yarn
  double beta_slow = 1.0;                                 // yarn
  bool truncate = true;                                   // yarn: whole dims as borders of the ramp
  /// factors, longrope: [rotary_dim / 2], what the angle of a pair is divided by.
  std::vector<float> factors{};
  double rotated_part = 1;  // proportional: of the pairs, the fastest; the others stay

  /// Positions [0, position_limit()) can be computed. Dynamic RoPE changes the angles of *all*
  /// positions when a sequence outgrows max_positions, and LongRoPE when it outgrows
  /// original_positions, which would make cached keys stale, so that is their limit; all other
  /// types have none (nullopt), though quality ends at the model's own length.
  std::optional<std::int64_t> position_limit() const;
};

/// Angle per position of each pair of dims: [rotary_dim / 2] f32, in the arithmetic of the
/// reference (f32 powers) and within 5e-7 relative of it. Requires rotary_dim even and > 0, for
/// dynamic RoPE > 2.
std::vector<float> inv_freq(const RopeConfig& rope, std::int64_t rotary_dim);

/// What cosines and sines are multiplied by: 1 for all types but yarn and longrope.
float attention_scaling(const RopeConfig& rope);

/// Cosines and sines of positions, for Backend::rope_and_store.
///   inv_freq   [rotary_dim / 2]
///   positions  [rows]
///   out        [rows, rotary_dim]: rotary_dim / 2 cosines, then as many sines, times `scaling`
/// The angle is the f32 product float(position) * inv_freq: at position 1e5 its rounding is
/// visible, and models were trained with it.
void fill_cos_sin(std::span<const float> inv_freq, float scaling,
                  std::span<const std::int64_t> positions, float* out);

/// Cosines and sines that were asked for once, in blocks of positions: a step asks for the
/// positions of all its rows, and a row's sines cost more than the rest of its place in a batch.
class RopeTable {
 public:
  /// As fill_cos_sin().
  RopeTable(std::vector<float> inv_freq, float scaling)
      : inv_freq_(std::move(inv_freq)), scaling_(scaling) {}

  /// fill_cos_sin() from the table.
  void fill(std::span<const std::int64_t> positions, float* out);

  static constexpr std::int64_t kBlock = 256;
  /// fill_cos_sin() of positions [index * kBlock, (index + 1) * kBlock), until the next call.
  std::span<const float> block(std::int64_t index);
  /// Makes the blocks of positions [0, count) now.
  void prepare(std::int64_t count, const ThreadPool& workers);
  std::int64_t rotary_dim() const { return 2 * std::ssize(inv_freq_); }

 private:
  void make(std::size_t index);

  std::vector<float> inv_freq_;
  float scaling_;
  std::vector<std::vector<float>> blocks_;  // empty: not asked for yet
};

}  // namespace dendrite
