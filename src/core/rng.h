#pragma once

#include <array>
#include <cstdint>

namespace dendrite {

/// Philox4x32-10: a counter-based generator, so that a draw is a pure function of its key and
/// counter and never of how many draws came before it or of who shares the batch.
/// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// 64 random bits of (key, a, b): used for stream ids and for draws.
constexpr std::uint64_t philox_u64(std::uint64_t key, std::uint64_t a, std::uint64_t b) {
  const auto out =
      philox4x32({static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32),
                  static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32)},
                 {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
  return (std::uint64_t{out[1]} << 32) | out[0];
}

// Streams: a prompt's comes from its session, a branch's from the one it was made of, and nothing
// else in a program shifts one. See docs/decisions/0022-random-streams.md.

/// Of a prompt: of the session's seed and stream, a hash of the prompt's tokens, and how often the
/// session was given these tokens before.
constexpr std::uint64_t prompt_stream(std::uint64_t seed, std::uint64_t session,
                                      std::uint64_t tokens, std::uint64_t before) {
  return philox_u64(philox_u64(seed, session, 0), tokens, before);
}

/// Of a fork: of its parent's stream, how many forks the parent had had, and the fork's length.
constexpr std::uint64_t fork_stream(std::uint64_t parent, std::uint64_t forks_made,
                                    std::uint64_t length) {
  return philox_u64(parent, (forks_made << 1) | 1u, length);
}

/// Of the child that continues with `token` (>= 0): of its parent's stream and length.
constexpr std::uint64_t token_stream(std::uint64_t parent, std::int32_t token,
                                     std::uint64_t length) {
  return philox_u64(parent, static_cast<std::uint64_t>(token) << 1, length);
}

/// Uniform in [0, 1) with 53 bits, for the token at `position` of a branch with `stream`.
constexpr double uniform_at(std::uint64_t seed, std::uint64_t stream, std::uint64_t position) {
  return static_cast<double>(philox_u64(seed, stream, position) >> 11) * 0x1p-53;
}

}  // namespace dendrite
