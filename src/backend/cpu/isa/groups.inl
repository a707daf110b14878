// What products of grouped weights share, with tiles or without.
// Included inside an unnamed namespace by the path's file.

/// Numbers [numbers][kPanel] of a chunk, each for the groups that it holds for, to out [groups][kPanel]. `whole`:
/// what those of two levels are multiplied with.
DENDRITE_NOINLINE void widen_numbers(const Groups& groups, const GroupsInfo& info,
                                     const std::byte* whole, const std::byte* from,
                                     std::int64_t numbers, float* out) {
  for (std::int64_t i = 0; i < numbers * kPanel; i += kLanes) {
    const std::byte* p = from + i * info.scale_bytes;
    Float number;
    if (groups.scales == GroupScales::kF32) {
      number = Vector::load(reinterpret_cast<const float*>(p));
    } else if (groups.scales == GroupScales::kF16) {
      number = Vector::load_f16(p);
    } else if (groups.scales == GroupScales::kTwoLevels) {
      number = Vector::mul(Vector::load_f16(whole + i % kPanel * 2), Vector::load_int8(p));
    } else if (groups.scales == GroupScales::kPowers) {
      number = Vector::load_powers(p);
    } else {
      number = Vector::load_steps(p, groups.steps);
    }
    float* to = out + i / kPanel * info.repeats * kPanel + i % kPanel;
    for (std::int64_t group = 0; group < info.repeats; ++group, to += kPanel) {
      Vector::store(to, number);
    }
  }
}

/// Scales, and minimums where there are some, of a chunk's groups [groups][kPanel].
DENDRITE_INLINE void widen_scales(const Groups& groups, const GroupsInfo& info,
                                  const std::byte* chunk, std::int64_t units, float* scales,
                                  float* minimums) {
  const std::int64_t numbers = info.numbers(units);
  widen_numbers(groups, info, chunk, chunk + info.whole_bytes, numbers, scales);
  if (!groups.minimums) return;
  const std::byte* from = chunk + info.minimums_at(units);
  if (!groups.points) {
    widen_numbers(groups, info, chunk + info.whole_bytes / 2, from, numbers, minimums);
    return;
  }
  for (std::int64_t i = 0; i < numbers * info.repeats * kPanel; i += kLanes) {
    const std::int64_t at = i / (info.repeats * kPanel) * kPanel + i % kPanel;
    Vector::store(minimums + i,
                  Vector::mul(Vector::load(scales + i), Vector::load_int8(from + at)));
  }
}

/// 1.5 * 2^23: added to a value, it rounds to the nearest even whole number.
constexpr float kRoundsWhole = 12582912.0f;

/// What 32 values are rounded with: code = value * inverse, to the nearest; value = code * scale.
struct UnitScale {
  float scale;  // NaN where a value is not finite
  float inverse;
};
DENDRITE_INLINE UnitScale scale_of_unit(const float* values) {
  Float most = Vector::zero();
  Float odd = Vector::zero();
  for (std::int64_t i = 0; i < kUnit; i += kLanes) {
    const Float value = Vector::load(values + i);
    most = Vector::max(most, Vector::max(value, Vector::sub(Vector::zero(), value)));
    odd = Vector::fma(value, Vector::zero(), odd);
  }
  const float largest = Vector::largest(most);
  // What is that small counts as zero: its inverse would be beyond what f32 has.
  const bool tiny = largest < 1e-30f;
  return {(tiny ? 0.0f : largest / 127.0f) + Vector::sum(odd), tiny ? 0.0f : 127.0f / largest};
}
