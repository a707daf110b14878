#pragma once

#include <cstdint>

#include "quant/groups.h"

// How packed weights lie in the memory of a GPU, for those who write them and for kernels.
//
// A tile is 8 rows x 256 columns, and all that goes with its values; tiles of the same rows follow
// each other. A lane of a warp (g, t) = (lane / 4, lane % 4) has row g, and of every 16 columns the
// four at 2t, 2t + 1, 2t + 8, 2t + 9: what it holds of the right operand of an m16n8k16 product.
// Codes of 16 bytes a lane follow each other: those of 64 columns (8 bits), of 128 (4 bits: of each
// word, the low halves of its two 16 bits hold the first columns of the four pairs of 32).
// Then come, each [8 rows][groups of a row], the scales and the minimums; with two levels a byte
// each, behind which an f16 a row scales the scales and one the minimums. A scale of kPowers is the
// exponent that an f32 has, in a byte; 0 is 2^-127.
//
// Raised nibbles are those of Groups::raised: scales, and in place of minimums what is added to
// (16 + code) * scale, in bf16 (kF16 is their size). Each word of codes is turned to the left by 3
// bits, so that a nibble lies where a bf16 of 16 has units.
namespace dendrite::cuda {

enum class PackedCodes : std::uint8_t { kNibbles, kRaised, kE2M1, kBytes, kE4M3 };

/// Nibbles without minimums have scales of at most 11 significant bits, E2M1 with scales in f16
/// powers of two. Those that kernels are compiled for are listed in packed_layouts.h.
struct PackedLayout {
  PackedCodes codes = PackedCodes::kBytes;
  GroupScales scales = GroupScales::kF16;
  std::int16_t group = 32;  // columns that share a scale: 16, 32 or 128
  bool minimums = false;
  bool points = false;  // a minimum is a code, which means 0: value = scale * (code - minimum)

  constexpr bool operator==(const PackedLayout&) const = default;

  static constexpr int kRows = 8;
  static constexpr int kColumns = 256;
  static constexpr int kCopyColumns = 64;  // a row is whole ones, as copies of x are

  constexpr bool four_bits() const {
    return codes != PackedCodes::kBytes && codes != PackedCodes::kE4M3;
  }
  constexpr int groups() const { return kColumns / group; }  // of a row
  constexpr int code_bytes() const { return kRows * kColumns / (four_bits() ? 2 : 1); }
  constexpr int scale_size() const {
    return scales == GroupScales::kF32 ? 4 : scales == GroupScales::kF16 ? 2 : 1;
  }
  constexpr int row_bytes() const { return groups() * scale_size(); }  // of scales of a row
  constexpr int scales_at() const { return code_bytes(); }
  constexpr int minimums_at() const { return scales_at() + kRows * row_bytes(); }
  constexpr int scale_at() const {  // of scales, with two levels
    return minimums_at() + (minimums ? kRows * row_bytes() : 0);
  }
  constexpr int minimum_at() const { return scale_at() + kRows * 2; }
  constexpr int tile_bytes() const {
    if (scales != GroupScales::kTwoLevels) return scale_at();
    return scale_at() + kRows * 2 * (minimums ? 2 : 1);
  }
};

/// Of a row of a matrix.
inline int tiles_of(std::int64_t cols) {
  return static_cast<int>((cols + PackedLayout::kColumns - 1) / PackedLayout::kColumns);
}

}  // namespace dendrite::cuda
