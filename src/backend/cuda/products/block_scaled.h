#pragma once

#include <cstddef>
#include <cstdint>

// MXFP8 and NVFP4 as tensor cores of compute capability 12.x multiply them: codes, neighbours of
// which share a scale of a byte, and where they lie in memory. For hosts and kernels.
#ifdef __CUDACC__
#define DENDRITE_ANY_SIDE __host__ __device__
#else
#define DENDRITE_ANY_SIDE
#endif

namespace dendrite::cuda {

/// kMxfp8: E4M3, 32 of which share a power of two (E8M0). kNvfp4: E2M1, 16 of which share an E4M3
/// without sign. Source: OCP Microscaling Formats 1.0; NVIDIA PTX ISA 9.0, "Block Scaling".
enum class BlockFormat : std::uint8_t { kMxfp8, kNvfp4 };

/// A tile is 128 columns; its product is made by kSteps instructions. A word is 32 bits of codes,
/// the first column in the lowest bits.
template <BlockFormat kFormat>
struct BlockTraits {
  static constexpr bool kE4M3 = kFormat == BlockFormat::kMxfp8;
  static constexpr int kTile = 128;
  static constexpr int kGroup = kE4M3 ? 32 : 16;
  static constexpr int kStep = kE4M3 ? 32 : 64;
  static constexpr int kSteps = kTile / kStep;
  static constexpr int kWordColumns = kE4M3 ? 4 : 8;
  static constexpr int kTileWords = kTile / kWordColumns;  // of a row
  static constexpr int kScaleWords = kTile / kGroup / 4;   // of a row
  static constexpr int kStepScales = kStep / kGroup;       // bytes of a scale word that it takes
  static constexpr int kTileRows = 8;                      // of weights
  static constexpr int kLaneWords = kTileRows * kTileWords / 32;
};

// Of the instruction's [16, kStep] left operand a lane (g, t) = (lane / 4, lane % 4) has four
// words, of its right one, [8, kStep] as rows of weights, two. In each half of the columns a word
// is number t of its row.

/// Of the left operand's word `reg`: the row.
DENDRITE_ANY_SIDE constexpr int left_row(int lane, int reg) {
  return lane / 4 + reg % 2 * 8;
}
/// The word of its row, in a step's eight.
DENDRITE_ANY_SIDE constexpr int left_word(int lane, int reg) {
  return reg / 2 * 4 + lane % 4;
}
/// The same of the right operand, whose row is lane / 4.
DENDRITE_ANY_SIDE constexpr int right_word(int lane, int reg) {
  return reg * 4 + lane % 4;
}
/// The row whose scales a lane hands in: of the left operand lanes t = 0 and 1 of each g are asked,
/// of the right one t = 0 (thread-id 0).
DENDRITE_ANY_SIDE constexpr int left_scale_row(int lane) {
  return lane / 4 + lane % 2 * 8;
}
DENDRITE_ANY_SIDE constexpr int right_scale_row(int lane) {
  return lane / 4;
}
/// Of a lane's four results: row and column.
DENDRITE_ANY_SIDE constexpr int result_row(int lane, int i) {
  return lane / 4 + i / 2 * 8;
}
DENDRITE_ANY_SIDE constexpr int result_column(int lane, int i) {
  return lane % 4 * 2 + i % 2;
}

/// Where weights have word `word` of row `row` of a tile [8, 128]: lanes' words as they are loaded,
/// four at a time. Scales lie apart, row by row of a tile.
template <BlockFormat kFormat>
DENDRITE_ANY_SIDE constexpr int weight_word_at(int row, int word) {
  const int lane = row * 4 + word % 4;
  const int number = word / 4;  // of the lane: step by step, two a step
  return (number / 4 * 32 + lane) * 4 + number % 4;
}

/// Where a weight's tiles begin: [rows / 8][tiles], words and words of scales.
template <BlockFormat kFormat>
struct BlockWeightLayout {
  using Traits = BlockTraits<kFormat>;
  static constexpr int kWords = Traits::kTileRows * Traits::kTileWords;
  static constexpr int kScales = Traits::kTileRows * Traits::kScaleWords;
  std::int64_t rows;
  std::int64_t cols;

  DENDRITE_ANY_SIDE std::int64_t tiles() const { return cols / Traits::kTile; }
  DENDRITE_ANY_SIDE std::int64_t number(std::int64_t row, std::int64_t tile) const {
    return row / Traits::kTileRows * tiles() + tile;
  }
  DENDRITE_ANY_SIDE std::int64_t words_at(std::int64_t row, std::int64_t tile) const {
    return number(row, tile) * kWords;
  }
  DENDRITE_ANY_SIDE std::int64_t scales_at(std::int64_t row, std::int64_t tile) const {
    return rows / Traits::kTileRows * tiles() * kWords + number(row, tile) * kScales +
           row % Traits::kTileRows * Traits::kScaleWords;
  }
  DENDRITE_ANY_SIDE std::int64_t size_bytes() const { return scales_at(rows, 0) * 4; }
};

/// Rows of inputs [rows, cols], cols a multiple of 128: codes row by row, then scales row by row.
struct BlockScaledRows {
  std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  BlockFormat format = BlockFormat::kMxfp8;

  bool is_e4m3() const { return format == BlockFormat::kMxfp8; }
  std::int64_t code_bytes() const { return is_e4m3() ? cols : cols / 2; }    // of a row
  std::int64_t scale_bytes() const { return cols / (is_e4m3() ? 32 : 16); }  // of a row
  std::byte* scales() const { return data + rows * code_bytes(); }
  std::int64_t size_bytes() const { return rows * (code_bytes() + scale_bytes()); }
};

}  // namespace dendrite::cuda
