#include "core/sha256.h"

#include <algorithm>
#include <bit>

namespace dendrite {
namespace {

/// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kRoundConstants{
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u,
    0xab1c5ed5u, 0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu,
    0x9bdc06a7u, 0xc19bf174u, 0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu,
    0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau, 0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u,
    0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u, 0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu,
    0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u, 0xa2bfe8a1u, 0xa81a664bu,
    0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u, 0x19a4c116u,
    0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u,
    0xc67178f2u};

std::uint32_t big_endian(std::span<const std::byte, 4> bytes) {
  std::uint32_t word = 0;
  for (const std::byte byte : bytes) word = word << 8 | std::to_integer<std::uint32_t>(byte);
  return word;
}

}  // namespace

void Sha256::add(std::span<const std::byte> bytes) {
  const auto pending = static_cast<std::size_t>(size_bytes_ % kBlockBytes);
  size_bytes_ += bytes.size();
  if (pending > 0) {
    const std::size_t taken = std::min(bytes.size(), kBlockBytes - pending);
    std::copy_n(bytes.begin(), taken, rest_.begin() + pending);
    bytes = bytes.subspan(taken);
    if (pending + taken < kBlockBytes) return;
    compress(rest_);
  }
  for (; bytes.size() >= kBlockBytes; bytes = bytes.subspan(kBlockBytes)) {
    compress(bytes.first<kBlockBytes>());
  }
  std::copy(bytes.begin(), bytes.end(), rest_.begin());
}

/// Pads a copy: one bit, then zeros until 8 bytes are left of a block, which are the size in bits.
Sha256Digest Sha256::digest() const {
  constexpr std::size_t kSizeBytes = 8;
  Sha256 padded = *this;
  std::array<std::byte, 2 * kBlockBytes> padding{std::byte{0x80}};
  const auto pending = static_cast<std::size_t>(size_bytes_ % kBlockBytes);
  const std::size_t end = pending + 1 + kSizeBytes <= kBlockBytes ? kBlockBytes : 2 * kBlockBytes;
  const std::size_t padding_bytes = end - pending;
  for (std::size_t i = 0; i < kSizeBytes; ++i) {
    padding[padding_bytes - 1 - i] = static_cast<std::byte>(size_bytes_ * 8 >> (8 * i));
  }
  padded.add(std::span(padding).first(padding_bytes));
  Sha256Digest digest{};
  for (std::size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<std::byte>(padded.state_[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

void Sha256::compress(Block block) {
  std::array<std::uint32_t, 64> w{};  // the message schedule; letters as in the standard
  for (std::size_t t = 0; t < 16; ++t) w[t] = big_endian(block.subspan(4 * t).first<4>());
  for (std::size_t t = 16; t < 64; ++t) {
    const std::uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = s1 + w[t - 7] + s0 + w[t - 16];
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t t = 0; t < 64; ++t) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRoundConstants[t] + w[t];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> change{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < state_.size(); ++i) state_[i] += change[i];
}

Sha256Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.digest();
}

Sha256Digest sha256(std::string_view text) {
  return sha256(std::as_bytes(std::span(text)));
}

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace dendrite
