#include "text/chunk_text.h"

#include <cstddef>
#include <cstdint>

#include "dendrite/error.h"
#include "text/utf8.h"

namespace dendrite {
namespace {

/// A character, and its size in bytes.
struct Character {
  char32_t code = 0;
  std::size_t size = 1;
};

/// Requires: `text` is UTF-8 and not empty.
Character first_of(std::string_view text) {
  const auto bits = [&](std::size_t i, unsigned mask) {
    return static_cast<char32_t>(static_cast<std::uint8_t>(text[i]) & mask);
  };
  if (bits(0, 0x80) == 0) return {bits(0, 0x7f), 1};
  if (bits(0, 0x20) == 0) return {bits(0, 0x1f) << 6 | bits(1, 0x3f), 2};
  if (bits(0, 0x10) == 0) {
    return {bits(0, 0x0f) << 12 | bits(1, 0x3f) << 6 | bits(2, 0x3f), 3};
  }
  return {bits(0, 0x07) << 18 | bits(1, 0x3f) << 12 | bits(2, 0x3f) << 6 | bits(3, 0x3f), 4};
}

Character last_of(std::string_view text) {
  std::size_t begin = text.size() - 1;
  while ((static_cast<std::uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
  return first_of(text.substr(begin));
}

/// As Python's str.isspace (3.11, Unicode 14): of bidirectional class WS, B or S, or category Zs.
bool is_space(char32_t code) {
  return (code >= 9 && code <= 13) || (code >= 28 && code <= 32) || code == 0x85 || code == 0xa0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
         code == 0x202f || code == 0x205f || code == 0x3000;
}

std::string_view strip(std::string_view text) {
  while (!text.empty()) {
    const Character first = first_of(text);
    if (!is_space(first.code)) break;
    text.remove_prefix(first.size);
  }
  while (!text.empty()) {
    const Character last = last_of(text);
    if (!is_space(last.code)) break;
    text.remove_suffix(last.size);
  }
  return text;
}

}  // namespace

std::string normalise_chunk(std::string_view text) {
  const std::size_t valid = utf8_prefix(text);
  if (valid < text.size()) {
    throw Error("text of a chunk: bytes from " + std::to_string(valid) + " of " +
                std::to_string(text.size()) + " on are not UTF-8; expected UTF-8");
  }
  const std::string_view core = strip(text);
  if (core.empty()) {
    throw Error("text of a chunk: " + std::to_string(text.size()) +
                " bytes without any character but white space; expected other characters");
  }
  std::string normal;
  normal.reserve(core.size());
  for (std::size_t i = 0; i < core.size(); ++i) {
    if (core[i] == '\r' && core.substr(i + 1).starts_with('\n')) continue;
    normal += core[i];
  }
  return normal;
}

}  // namespace dendrite
