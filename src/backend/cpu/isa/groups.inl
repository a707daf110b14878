// What products of grouped weights share, with tiles or without.
// Included inside an unnamed namespace by the path's file.

/// The scales, or minimums, of a chunk's units widened to out [units * groups][kPanel]. `first`: the first
/// unit's; `whole`: of the chunk, with two levels.
DENDRITE_INLINE void widen_scales(const Groups& groups, const GroupsInfo& info,
                                  const std::byte* whole, const std::byte* first,
                                  std::int64_t units, float* out) {
  for (std::int64_t unit = 0; unit < units; ++unit) {
    const std::byte* from = first + unit * info.unit_bytes;
    for (std::int64_t i = 0; i < info.groups * kPanel; i += kLanes) {
      const std::byte* p = from + i * info.scale_bytes;
      Float scale;
      if (groups.scales == GroupScales::kF32) {
        scale = Vector::load(reinterpret_cast<const float*>(p));
      } else if (groups.scales == GroupScales::kF16) {
        scale = Vector::load_f16(p);
      } else {
        scale = Vector::mul(Vector::load_f16(whole + i % kPanel * 2), Vector::load_int8(p));
      }
      Vector::store(out + unit * info.groups * kPanel + i, scale);
    }
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
