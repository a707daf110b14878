#include "server/ids.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <span>

#include "dendrite/error.h"

namespace dendrite::server {
namespace {

void fill(std::span<unsigned char> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno != EINTR) throw Error("serve: the system has no random numbers");
    if (got > 0) bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

}  // namespace

std::string random_hex(int bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::array<unsigned char, 32> random{};
  const auto used = std::span(random).first(static_cast<std::size_t>(bytes));
  fill(used);
  std::string out;
  for (const unsigned char byte : used) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

std::uint64_t random_bits() {
  std::array<unsigned char, 8> random{};
  fill(random);
  std::uint64_t out = 0;
  for (const unsigned char byte : random) out = out << 8 | byte;
  return out;
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  return hash;
}

std::string hash_hex(std::string_view text) {
  const std::uint64_t hash = hash_of(text);
  std::string hex;
  for (int shift = 60; shift >= 0; shift -= 4) hex += "0123456789abcdef"[(hash >> shift) & 15];
  return hex;
}

}  // namespace dendrite::server
