#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// Rows of plain weights to what files of 8 and 4 bits hold: the inverse of fp8.cpp, int8.cpp and
// int4_packed.cpp, as compressed-tensors lays it out.
namespace dendrite {

enum class PackedKind : std::uint8_t {
  kFp8,   // E4M3, "float-quantized"
  kInt8,  // "int-quantized"
  kInt4,  // eight in a word, "pack-quantized"
};

/// What rows of a matrix become: codes, and a scale for each group of neighbours.
struct RowPacking {
  PackedKind kind = PackedKind::kInt8;
  std::int64_t group = 0;  // values that share a scale; 0: a whole row

  std::int64_t scales(std::int64_t cols) const { return group == 0 ? 1 : cols / group; }
  std::int64_t row_bytes(std::int64_t cols) const {
    return kind == PackedKind::kInt4 ? cols / 2 : cols;
  }
};

/// Rounds one row to nearest: its codes to `bytes`, its scales to `scales`, and what these mean to
/// `values`, in whose place finite numbers were. Rows of kInt4 are whole groups of whole words.
///
/// A scale is a number that bf16 and f16 both have, so that whoever keeps it in either means the
/// same (of whole rows: that bf16 has). Of 8 bits it is the largest value's; of 4 bits, where much
/// is lost between two codes, the one of some that makes the sum of `importance` * error^2 over the
/// group least, the largest value cut off if need be.  importance [values.size()]: of kInt4.
void pack_row(const RowPacking& packing, std::span<float> values, std::span<const float> importance,
              std::byte* bytes, std::span<float> scales);

}  // namespace dendrite
