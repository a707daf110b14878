#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dendrite {

using Sha256Digest = std::array<std::byte, 32>;

/// SHA-256 of bytes that come in pieces: how they are cut makes no difference. For names of
/// contents that must not collide, not even on purpose; where only damage is to be found,
/// hash_bytes is many times as fast. Source: FIPS 180-4 (NIST 2015), sections 5.1.1, 5.3.3 and 6.2.
class Sha256 {
 public:
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  /// Of all bytes so far. More may be added afterwards.
  Sha256Digest digest() const;

 private:
  static constexpr std::size_t kBlockBytes = 64;
  using Block = std::span<const std::byte, kBlockBytes>;

  void compress(Block block);

  std::array<std::uint32_t, 8> state_{0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                      0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
  std::array<std::byte, kBlockBytes> rest_{};  // its first size_bytes_ % 64: not in state_ yet
  std::uint64_t size_bytes_ = 0;
};

Sha256Digest sha256(std::span<const std::byte> bytes);
Sha256Digest sha256(std::string_view text);

/// Two lower-case hexadecimal digits a byte, in their order.
std::string to_hex(std::span<const std::byte> bytes);

}  // namespace dendrite
