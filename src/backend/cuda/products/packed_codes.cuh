#pragma once

#include "backend/cuda/base/e4m3.cuh"
#include "backend/cuda/products/packed_decode.cuh"

// Packed weights as operands of tensor cores, for packed_kernel.cuh and packed_wide.cuh, in few
// instructions: pairs of bf16 in units of what the sums are multiplied by.
//
// The order of sums, the same for any number of rows. A part, 128 columns, is summed by tensor
// cores from nothing, in steps of 16 columns. A tile, 256, is summed from nothing, too, part after
// part: fma(part, factor, sum). An output is the sum of its tiles, one after the other.
//
// Units. Of groups of 128 columns: the scale, the factor of a part, so that codes are multiplied as
// they are. With two levels: what scales the scales of a row of a tile; a code is multiplied by its
// group's small number and rounded to bf16 once, as is what its minimum is in this unit. Else 1,
// and values are rounded to bf16.
namespace dendrite::cuda::packed {

constexpr int kPartSteps = 8;  // of 16 columns

__device__ inline std::uint32_t twice(float number) {  // that bf16 has
  return upper_twice(__float_as_uint(number));
}

/// What goes with the codes of a group of a lane's row. Pairs are of bf16.
template <class Q>
class LaneGroup {
 public:
  LaneGroup() = default;
  /// step: the group's first of 16 columns, a constant. minus: LaneRow::minus(). less: 128 - the
  /// least nibble as a bf16, twice
  __device__ LaneGroup(const RowScales<Q>& scales, int step, float minus, std::uint32_t less)
      : less_(less) {
    if constexpr (kPoints) less_ = twice(__uint_as_float(less << 16) + scales.minimum(step));
    if constexpr (kRaised) {
      upper_ = scales.raised_scale(step);
      minus_ = scales.raised_offset(step);
    } else if constexpr (kTwoLevels) {
      upper_ = twice(scales.sub_scale(step));
      if constexpr (kMinimums) {
        const float of_unit = scales.sub_minimum(step) * minus;
        minus_ = pack_bf16(of_unit, of_unit);
      }
    } else if constexpr (kScaled) {
      // A scale is its upper 8 bits and the next ones.
      const float scale = scales.scale(step);
      const float upper = __uint_as_float(__float_as_uint(scale) & 0xffff0000u);
      upper_ = twice(upper);
      if constexpr (!kPowers) rest_ = twice(__fsub_rn(scale, upper));
      if constexpr (kMinimums) {
        const float of_unit = -scales.minimum(step);
        minus_ = pack_bf16(of_unit, of_unit);
      }
    }
  }

  /// Two pairs of step `step` (a constant), as LaneTile::step(). codes: TileCodes::load() of it
  __device__ uint2 pairs(const uint4& codes, int step) const {
    constexpr int kSteps = Q::kCodeBytes == 1024 ? 8 : 4;  // of 16 bytes
    const int i = step % kSteps * 4 / kSteps;
    const std::uint32_t word = i == 0 ? codes.x : i == 1 ? codes.y : i == 2 ? codes.z : codes.w;
    if constexpr (kRaised) {
      return raised_pairs(word, step, upper_, minus_);
    } else if constexpr (Q::kLayout.codes == PackedCodes::kNibbles) {
      const std::uint32_t nibbles = word >> (step % 2 * 8);
      return scaled(nibble_pair(nibbles, less_), nibble_pair(nibbles >> 4, less_));
    } else if constexpr (Q::kLayout.codes == PackedCodes::kE2M1) {
      const std::uint32_t doubled = word >> (step % 2 * 8);
      return scaled(e2m1_pair<0>(doubled), e2m1_pair<0>(doubled >> 4));
    } else if constexpr (Q::kLayout.codes == PackedCodes::kE4M3) {
      const uint2 values = widen_four(word);
      return scaled(values.x, values.y);
    } else {
      return scaled(byte_pair(__byte_perm(word, 0, 0x4140)),
                    byte_pair(__byte_perm(word, 0, 0x4342)));
    }
  }

 private:
  static constexpr bool kRaised = Q::kLayout.codes == PackedCodes::kRaised;
  static constexpr bool kPoints = Q::kLayout.points;
  static constexpr bool kMinimums = Q::kLayout.minimums && !kPoints;
  static constexpr bool kTwoLevels = Q::kLayout.scales == GroupScales::kTwoLevels;
  static constexpr bool kScaled = Q::kLayout.group != 128;
  static constexpr bool kPowers =
      Q::kLayout.scales == GroupScales::kPowers ||
      (Q::kLayout.codes == PackedCodes::kE2M1 && Q::kLayout.scales == GroupScales::kF16);

  /// The signed bytes at bit 0 and 16: 128 and their low bits, less 128, or 256 where they are
  /// negative.
  static __device__ std::uint32_t byte_pair(std::uint32_t bytes) {
    std::uint32_t codes = put_on<0x007f007fu>(bytes, 0x43004300u);
    const std::uint32_t less = put_on<0x00800080u>(bytes, 0x43004300u);
    asm("sub.rn.bf16x2 %0, %0, %1;" : "+r"(codes) : "r"(less));
    return codes;
  }

  __device__ uint2 scaled(std::uint32_t first, std::uint32_t second) const {
    return make_uint2(scaled(first), scaled(second));
  }
  __device__ std::uint32_t scaled(std::uint32_t codes) const {
    if constexpr (!kScaled) return codes;
    if constexpr (kTwoLevels || kPowers) {
      return kMinimums ? fma_pairs(codes, upper_, minus_) : scale_pairs(codes, upper_);
    } else {
      return fma_pairs(codes, upper_,
                       kMinimums ? fma_pairs(codes, rest_, minus_) : scale_pairs(codes, rest_));
    }
  }

  std::uint32_t less_ = 0;
  std::uint32_t upper_ = 0;
  std::uint32_t rest_ = 0;
  std::uint32_t minus_ = 0;
};

/// A lane's row of a tile.
template <class Q>
class LaneRow {
 public:
  /// Steps of 16 columns whose codes are 16 bytes of a lane.
  static constexpr int kVectorSteps = Q::kCodeBytes == 1024 ? 8 : 4;
  static constexpr bool kHasMinus =
      Q::kLayout.scales == GroupScales::kTwoLevels && Q::kLayout.minimums;

  /// tile: 16-byte aligned. less: of LaneGroup
  __device__ LaneRow(const std::uint8_t* tile, int lane, std::uint32_t less)
      : scales_(tile, lane / 4), less_(less) {}

  /// The codes of `step` and its neighbours.
  static __device__ uint4 load(const std::uint8_t* tile, int lane, int step) {
    return reinterpret_cast<const uint4*>(tile)[step / kVectorSteps * 32 + lane];
  }

  /// What the sum of the part of `step` is multiplied by.
  __device__ float factor(int step) const {
    if constexpr (Q::kLayout.group == 128) {
      return scales_.scale(step);
    } else if constexpr (kHasMinus) {
      return scales_.whole() == 0 ? scales_.whole_minimum() : scales_.whole();
    } else if constexpr (Q::kLayout.scales == GroupScales::kTwoLevels) {
      return scales_.whole();
    } else {
      return 1;
    }
  }
  /// kHasMinus: what a small number of a minimum is multiplied by. Where the unit would be 0 it is
  /// that of minimums, and all codes are 0.
  __device__ float minus() const {
    if constexpr (!kHasMinus) return 0;
    if (scales_.whole() == 0) return -1;
    return -__fdiv_rn(scales_.whole_minimum(), scales_.whole());
  }
  __device__ LaneGroup<Q> group(int step, float minus) const {
    return LaneGroup<Q>(scales_, step, minus, less_);
  }

 private:
  RowScales<Q> scales_;
  std::uint32_t less_;
};

}  // namespace dendrite::cuda::packed
