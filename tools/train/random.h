// Random numbers and the hash of the split: the same on every machine.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace train {

/// The finalizer of murmur3, as a hash of one 64-bit number.
inline std::uint64_t mix64(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 33;
}

/// FNV-1a, mixed.
inline std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mix64(hash);
}

/// xoshiro256++ seeded through splitmix64: the same stream on every machine, unlike
/// std::uniform_int_distribution.
class Rng {
 public:
  Rng(std::uint64_t seed, std::uint64_t stream) {
    std::uint64_t x = mix64(seed + 1) ^ mix64(stream * 0x9e3779b97f4a7c15ULL + 0x1234567);
    for (std::uint64_t& word : words_) word = mix64(x += 0x9e3779b97f4a7c15ULL);
  }
  std::uint64_t next() {
    const std::uint64_t result = rotate(words_[0] + words_[3], 23) + words_[0];
    const std::uint64_t t = words_[1] << 17;
    words_[2] ^= words_[0];
    words_[3] ^= words_[1];
    words_[1] ^= words_[2];
    words_[0] ^= words_[3];
    words_[2] ^= t;
    words_[3] = rotate(words_[3], 45);
    return result;
  }
  /// Uniform in [0, n); the bias of the multiplication is below 2^-32 for the small n used here.
  int below(int n) {
    return static_cast<int>((next() >> 32) * static_cast<std::uint64_t>(n) >> 32);
  }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool chance(double p) { return static_cast<double>(next() >> 11) * 0x1p-53 < p; }

 private:
  static std::uint64_t rotate(std::uint64_t x, int k) { return x << k | x >> (64 - k); }
  std::array<std::uint64_t, 4> words_;
};

template <typename T>
const T& any_of(std::span<const T> list, Rng& rng) {
  return list[rng.below(static_cast<int>(list.size()))];
}

}  // namespace train
