// What products of grouped weights share, with tiles or without.
// Included inside an unnamed namespace by the path's file.

/// Units whose sums come first, and then their minimums.
constexpr std::int64_t kUnitsAtOnce = 4;

/// Numbers [numbers][kPanel] of a chunk, each for the groups that it holds for, to out [groups][kPanel].
/// load(lane, i): those at i, which are of the columns from `lane` on.
template <typename Load>
DENDRITE_INLINE void widen_each(std::int64_t numbers, std::int64_t repeats, float* out, const Load& load) {
  for (std::int64_t lane = 0; lane < kPanel; lane += kLanes) {
    float* to = out + lane;
    for (std::int64_t i = lane; i < numbers * kPanel; i += kPanel) {
      const Float number = load(lane, i);
      for (std::int64_t group = 0; group < repeats; ++group, to += kPanel) Vector::store(to, number);
    }
  }
}

/// The same of all kinds. `whole`: what numbers of two levels are multiplied with.
DENDRITE_NOINLINE void widen_numbers(const Groups& groups, const std::byte* whole, const std::byte* from,
                                     std::int64_t numbers, float* out) {
  const std::int64_t repeats = groups.repeats;
  switch (groups.scales) {
    case GroupScales::kF32:
      return widen_each(numbers, repeats, out, [&](std::int64_t, std::int64_t i) {
        return Vector::load(reinterpret_cast<const float*>(from) + i);
      });
    case GroupScales::kF16:
      return widen_each(numbers, repeats, out,
                        [&](std::int64_t, std::int64_t i) { return Vector::load_f16(from + i * 2); });
    case GroupScales::kTwoLevels:
      return widen_each(numbers, repeats, out, [&](std::int64_t lane, std::int64_t i) {
        return Vector::mul(Vector::load_f16(whole + lane * 2), Vector::load_int8(from + i));
      });
    case GroupScales::kPowers:
      return widen_each(numbers, repeats, out,
                        [&](std::int64_t, std::int64_t i) { return Vector::load_powers(from + i); });
    case GroupScales::kSteps:
      return widen_each(numbers, repeats, out, [&](std::int64_t, std::int64_t i) {
        return Vector::load_steps(from + i, groups.steps);
      });
  }
}

/// Scales, and minimums where there are some, of a chunk's groups [groups][kPanel].
DENDRITE_INLINE void widen_scales(const Groups& groups, const GroupsInfo& info,
                                  const std::byte* chunk, std::int64_t units, float* scales,
                                  float* minimums) {
  const std::int64_t numbers = info.numbers(units);
  widen_numbers(groups, chunk, chunk + info.whole_bytes, numbers, scales);
  if (!groups.minimums) return;
  const std::byte* from = chunk + info.minimums_at(units);
  if (!groups.points) {
    widen_numbers(groups, chunk + info.whole_bytes / 2, from, numbers, minimums);
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
