#pragma once

#include "backend/cuda/base/e4m3.cuh"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/products/packed_kernels.h"

// Packed weights to bf16, in registers: bit for bit GroupedValues::value() rounded once.
namespace dendrite::cuda::packed {

/// Byte i of four, whose highest bits were changed, as a number: several conversions would wait for
/// each other.
__device__ inline float signed_byte(std::uint32_t changed, int i) {
  const std::uint32_t bits = __byte_perm(changed, 0x4b000000u, 0x7440 + i);
  return __fsub_rn(__uint_as_float(bits), 8388736.0f);  // 2^23 + 128
}

/// What goes with the codes of a row of a tile.
template <class Q>
class RowScales {
 public:
  RowScales() = default;
  /// tile: 16-byte aligned, in shared or global memory.
  __device__ RowScales(const std::uint8_t* tile, int row) {
    load(scales_, tile + Q::kScalesAt + row * Q::kRowBytes);
    if constexpr (Q::kLayout.minimums) {
      load(minimums_, tile + Q::kMinimumsAt + row * Q::kRowBytes);
    }
    if constexpr (Q::kLayout.scales == GroupScales::kTwoLevels) {
      scale_ = widen(reinterpret_cast<const __half*>(tile + Q::kScaleAt)[row]);
      if constexpr (Q::kLayout.minimums) {
        minimum_ = widen(reinterpret_cast<const __half*>(tile + Q::kMinimumAt)[row]);
      }
    }
  }

  /// Of the group that column 16 * step of the tile is in.
  __device__ float scale(int step) const { return number(scales_, step, scale_); }
  __device__ float minimum(int step) const { return number(minimums_, step, minimum_); }
  /// With two levels: what is multiplied by whole(), or by whole_minimum().
  __device__ float sub_scale(int step) const { return number(scales_, step, 1); }
  __device__ float sub_minimum(int step) const { return number(minimums_, step, 1); }
  /// Of Groups::raised: what (16 + code) is multiplied by, and what is added then; twice.
  __device__ std::uint32_t raised_scale(int step) const { return raised(scales_, step); }
  __device__ std::uint32_t raised_offset(int step) const { return raised(minimums_, step); }
  __device__ float whole() const { return scale_; }
  __device__ float whole_minimum() const { return minimum_; }

 private:
  static constexpr int kWords = Q::kRowBytes / 4;

  static __device__ void load(std::uint32_t (&words)[kWords], const std::uint8_t* from) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const std::uint32_t*>(from)[i];
  }
  static __device__ std::uint32_t raised(const std::uint32_t (&words)[kWords], int step) {
    const int group = step * 16 / Q::kLayout.group;
    return group % 2 == 0 ? lower_twice(words[group / 2]) : upper_twice(words[group / 2]);
  }
  static __device__ float number(const std::uint32_t (&words)[kWords], int step, float whole) {
    const int group = step * 16 / Q::kLayout.group;
    if constexpr (Q::kLayout.scales == GroupScales::kF32) {
      return __uint_as_float(words[group]);
    } else if constexpr (Q::kLayout.scales == GroupScales::kF16) {
      const std::uint32_t word = words[group / 2] >> (group % 2 * 16);
      return widen(__ushort_as_half(static_cast<unsigned short>(word)));
    } else if constexpr (Q::kLayout.scales == GroupScales::kPowers) {
      const std::uint32_t exponent = __byte_perm(words[group / 4], 0, 0x4440 + group % 4);
      return __uint_as_float(max(exponent << 23, 0x00400000u));
    } else {
      return __fmul_rn(whole, signed_byte(words[group / 4] ^ 0x80808080u, group % 4));
    }
  }

  std::uint32_t scales_[kWords];
  std::uint32_t minimums_[Q::kLayout.minimums ? kWords : 1];
  float scale_ = 1;
  float minimum_ = 1;
};

/// Four codes as numbers, exactly: those at columns 2t, 2t + 1, 2t + 8, 2t + 9 of a step of 16.
struct Four {
  float of[4];
};

/// bits & kMask | magic, for which one instruction takes one constant only.
template <std::uint32_t kMask>
__device__ std::uint32_t put_on(std::uint32_t bits, std::uint32_t magic) {
  std::uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(bits), "n"(kMask), "r"(magic));
  return out;
}

/// The nibble of `bits` at bit kAt as a number: the low bits of 2^(23 - kAt) in f32, less that and
/// `zero`.
template <int kAt>
__device__ float nibble(std::uint32_t bits, float zero) {
  constexpr std::uint32_t kMagic = (127 + 23 - kAt) << 23;
  return __fsub_rn(__uint_as_float(put_on<0xfu << kAt>(bits, kMagic)),
                   static_cast<float>(1 << (23 - kAt)) + zero);
}

/// Half `half` of a word of nibbles: a step. Those of its second pairs are 16 bits up.
__device__ inline Four four_nibbles(std::uint32_t word, int half, float zero) {
  const std::uint32_t up = word << 8;
  const std::uint32_t down = word >> 12;
  if (half == 0) {
    return {nibble<8>(up, zero), nibble<16>(word, zero), nibble<12>(up, zero),
            nibble<8>(down, zero)};
  }
  return {nibble<8>(word, zero), nibble<12>(down, zero), nibble<12>(word, zero),
          nibble<16>(down, zero)};
}

__device__ inline Four four_bytes(std::uint32_t word) {
  const std::uint32_t codes = word ^ 0x80808080u;
  Four four;
#pragma unroll
  for (int i = 0; i < 4; ++i) four.of[i] = signed_byte(codes, i);
  return four;
}

/// Of E4M3 as f16, whose exponent has one more bit and another bias: 256 times less.
__device__ inline Four four_e4m3(std::uint32_t word) {
  Four four;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t bytes = __byte_perm(word, 0, i == 0 ? 0x1404 : 0x3424);
    const std::uint32_t halves = (bytes & 0x80008000u) | ((bytes & 0x7f007f00u) >> 1);
    four.of[2 * i] = widen(__ushort_as_half(static_cast<unsigned short>(halves)));
    four.of[2 * i + 1] = widen(__ushort_as_half(static_cast<unsigned short>(halves >> 16)));
  }
  return four;
}

/// Half `half` of a word of E2M1, as f16: exponents have another bias, so it is 2^14 times less.
__device__ inline Four four_e2m1(std::uint32_t word, int half) {
  Four four;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t pair = word >> (half * 8 + i * 4);
    const std::uint32_t halves = ((pair & 0x00080008u) << 12) | ((pair & 0x00070007u) << 9);
    four.of[2 * i] = widen(__ushort_as_half(static_cast<unsigned short>(halves)));
    four.of[2 * i + 1] = widen(__ushort_as_half(static_cast<unsigned short>(halves >> 16)));
  }
  return four;
}

/// Of pairs of bf16: a b + c, a b, and the nibbles at bit 0 and 16 of `bits`, 128 more, less
/// `less`.
__device__ inline std::uint32_t fma_pairs(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}
__device__ inline std::uint32_t scale_pairs(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
__device__ inline std::uint32_t nibble_pair(std::uint32_t bits, std::uint32_t less) {
  std::uint32_t codes = put_on<0x000f000fu>(bits, 0x43004300u);
  asm("sub.rn.bf16x2 %0, %0, %1;" : "+r"(codes) : "r"(less));
  return codes;
}

/// Groups::raised: values of step `step`, as LaneTile::step(). word: its codes and its neighbour's
__device__ inline uint2 raised_pairs(std::uint32_t word, int step, std::uint32_t scale,
                                     std::uint32_t offset) {
  const auto pair = [&](int i) {
    const std::uint32_t bits = __funnelshift_r(word, word, 4 * i);
    return fma_pairs(put_on<0x00780078u>(bits, 0x41804180u), scale, offset);  // on 16
  };
  return make_uint2(pair(step % 2 * 2), pair(step % 2 * 2 + 1));
}

/// Two nibbles times a scale of 11 significant bits, rounded once, in bf16: the scale is its upper
/// 8 bits and the rest, whose products with a nibble are exact.
class ShortScale {
 public:
  __device__ explicit ShortScale(float scale) {
    const std::uint32_t upper = __float_as_uint(scale) & 0xffff0000u;
    const float rest = __fsub_rn(scale, __uint_as_float(upper));
    upper_ = upper_twice(upper);
    // With the scale's sign, a zero has its too.
    rest_ = upper_twice(__float_as_uint(rest) | (upper & 0x80000000u));
  }
  /// The nibbles at bit 0 and 16 of `bits`. `less`: 128 - the least one, twice.
  __device__ std::uint32_t times(std::uint32_t bits, std::uint32_t less) const {
    const std::uint32_t codes = nibble_pair(bits, less);
    return fma_pairs(codes, upper_, scale_pairs(codes, rest_));
  }

 private:
  std::uint32_t upper_;
  std::uint32_t rest_;
};

/// Twice the E2M1 at bit kAt and kAt + 16 of `word`, in bf16. Their exponents get the places of
/// those of bf16, whose bias is 126 more; what is subnormal there is multiplied exactly, too.
template <int kAt>
__device__ std::uint32_t e2m1_pair(std::uint32_t word) {
  constexpr std::uint32_t kBias = 0x7f007f00u;  // 2^127
  const std::uint32_t sizes = kAt < 6 ? word << (kAt < 6 ? 6 - kAt : 0) : word >> (kAt - 6);
  return multiply_pairs((word << (12 - kAt) & 0x80008000u) | (sizes & 0x01c001c0u), kBias);
}

/// Two E2M1, doubled, times a power of two, which is exact in bf16.
class PowerScale {
 public:
  __device__ explicit PowerScale(float scale) { scale_ = upper_twice(__float_as_uint(scale)); }
  /// The codes at bit kAt and kAt + 16 of `word`.
  template <int kAt>
  __device__ std::uint32_t times(std::uint32_t word) const {
    return multiply_pairs(e2m1_pair<kAt>(word), scale_);
  }

 private:
  std::uint32_t scale_;
};

/// A lane's part of a tile.
template <class Q>
class LaneTile {
 public:
  static constexpr int kVectors = Q::kCodeBytes / 512;

  LaneTile() = default;
  __device__ LaneTile(const std::uint8_t* tile, int lane, std::uint32_t less)
      : scales_(tile, lane / 4), less_(less) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      codes_[i] = reinterpret_cast<const uint4*>(tile)[i * 32 + lane];
    }
  }

  /// Values of step `step` (a constant), as two pairs of bf16.
  __device__ uint2 step(int step) const {
    if constexpr (kPowers) {
      const PowerScale scale(scales_.scale(step));
      const std::uint32_t pairs = word(codes_[step / 8], step / 2 % 4);
      if (step % 2 == 0) return make_uint2(scale.times<0>(pairs), scale.times<4>(pairs));
      return make_uint2(scale.times<8>(pairs), scale.times<12>(pairs));
    } else if constexpr (kShort) {
      const ShortScale scale(scales_.scale(step));
      const std::uint32_t nibbles = word(codes_[step / 8], step / 2 % 4) >> (step % 2 * 8);
      return make_uint2(scale.times(nibbles, less_), scale.times(nibbles >> 4, less_));
    } else if constexpr (Q::kLayout.codes == PackedCodes::kRaised) {
      return raised_pairs(word(codes_[step / 8], step / 2 % 4), step, scales_.raised_scale(step),
                          scales_.raised_offset(step));
    } else {
      const Four four = codes(step);
      const float scale = scales_.scale(step) * kUnit;
      float values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (!Q::kLayout.minimums) {
          values[i] = __fmul_rn(scale, four.of[i]);
        } else if constexpr (Q::kLayout.points) {
          values[i] = __fmul_rn(scale, __fsub_rn(four.of[i], scales_.minimum(step)));
        } else if constexpr (Q::kLayout.scales == GroupScales::kF32) {
          values[i] = __fsub_rn(__fmul_rn(scale, four.of[i]), scales_.minimum(step));
        } else {  // products of 24 bits at most are exact
          values[i] = __fmaf_rn(scale, four.of[i], -scales_.minimum(step));
        }
      }
      return make_uint2(pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]));
    }
  }

 private:
  /// What numbers of codes are to be multiplied by.
  static constexpr float kUnit = Q::kLayout.codes == PackedCodes::kE4M3   ? 256.0F
                                 : Q::kLayout.codes == PackedCodes::kE2M1 ? 32768.0F
                                                                          : 1.0F;
  static constexpr bool kPowers =
      Q::kLayout.codes == PackedCodes::kE2M1 && Q::kLayout.scales == GroupScales::kF16;
  static constexpr bool kShort = Q::kLayout.codes == PackedCodes::kNibbles && !Q::kLayout.minimums;

  __device__ Four codes(int step) const {
    if constexpr (Q::kLayout.codes == PackedCodes::kNibbles) {
      // less is a bf16 of 128 - the least nibble
      const float zero = __uint_as_float(less_ << 16) - 128.0f;
      return four_nibbles(word(codes_[step / 8], step / 2 % 4), step % 2, zero);
    } else if constexpr (Q::kLayout.codes == PackedCodes::kE2M1) {
      return four_e2m1(word(codes_[step / 8], step / 2 % 4), step % 2);
    } else {
      const std::uint32_t codes = word(codes_[step / 4], step % 4);
      return Q::kLayout.codes == PackedCodes::kBytes ? four_bytes(codes) : four_e4m3(codes);
    }
  }
  static __device__ std::uint32_t word(const uint4& vector, int i) {
    return i == 0 ? vector.x : i == 1 ? vector.y : i == 2 ? vector.z : vector.w;
  }

  uint4 codes_[kVectors];
  RowScales<Q> scales_;
  std::uint32_t less_;
};

}  // namespace dendrite::cuda::packed
