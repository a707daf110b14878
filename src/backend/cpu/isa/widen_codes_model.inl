// Codes of grouped weights to tiles of bf16, in plain C++.
// Included inside an unnamed namespace by the path's file.

/// Widens a unit of a panel's codes to pairs of bf16, in four tiles [16 pairs][16 columns] after one another.
DENDRITE_INLINE void widen_unit(const Groups& groups, const std::byte* codes, std::byte* out) {
  for (std::int64_t k = 0; k < kUnit; ++k) {
    for (std::int64_t column = 0; column < kPanel; ++column) {
      const std::int64_t word = groups.bits == 4 ? k / 8 : k / 4;
      const int byte = static_cast<int>(codes[(word * kPanel + column) * 4 + k % 4]);
      const int code = groups.bits == 8 ? byte : k % 8 < 4 ? byte & 15 : byte >> 4;
      const auto bits = static_cast<std::uint16_t>(bf16_of_code(meaning_of(groups, code)));
      __builtin_memcpy(out + column / 16 * 1024 + (k / 2 * 16 + column % 16) * 4 + k % 2 * 2, &bits,
                       sizeof bits);
    }
  }
}
