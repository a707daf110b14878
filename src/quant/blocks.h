#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "quant/format.h"

// Blocks that hold all that goes with their values, as GGUF files have them. Where a value is a
// product and a sum, each is rounded to f32 by itself, in the order that a format's head says.
// Source: the files' own definition, github.com/ggml-org/ggml; values are bit for bit those of its
// reference (tests/quant/gguf_reference_test.py).
namespace dendrite {

/// A format of such blocks: groups of neighbours.
class BlockFormat : public Format {
 public:
  void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
             std::span<float> out) const final;
  std::optional<Groups> groups(const StoredMatrix&) const override { return groups_; }
  void read_groups(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                   std::int64_t count, GroupedValues& out) const override;

 protected:
  /// `name` in capitals is how files spell it.
  BlockFormat(std::string_view name, std::string_view stored_type, std::int64_t values,
              std::int64_t bytes, const Groups& groups)
      : Format(name, stored_type, values, bytes), groups_(groups) {}

  /// One block: its codes, and the scales and minimums of its groups.
  virtual void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales,
                          float* minimums, GroupedValues& out) const = 0;

 private:
  Groups groups_;
};

/// The f16 at a place that may be unaligned.
float half_at(const std::uint8_t* bytes);

/// The low bits of 16 bytes are values 0 to 15, the high ones 16 to 31.
inline int nibble_at(const std::uint8_t* bytes, int value) {
  return bytes[value % 16] >> (value / 16 * 4) & 15;
}

/// A bit of a string of bits, the lowest of a byte first.
inline int bit_at(const std::uint8_t* bytes, int index) {
  return bytes[index / 8] >> (index % 8) & 1;
}

/// Scales and minimums of the eight groups of a block, six bits each in twelve bytes. The low six
/// bits of bytes 0 to 3 and 4 to 7 are groups 0 to 3; of groups 4 to 7 bytes 8 to 11 hold four
/// bits, and the upper two are those left over before.
void read_six_bits(const std::uint8_t* bytes, float* scales, float* minimums);

}  // namespace dendrite
