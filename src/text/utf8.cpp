#include "text/utf8.h"

#include <cstddef>
#include <cstdint>

namespace dendrite {
namespace {

enum class Part { kComplete, kIncomplete, kInvalid };

struct Scan {
  Part part;
  std::size_t size;  // bytes, at least 1
};

/// Reads one character at the front of `bytes` (not empty). kIncomplete: all of `bytes` was read
/// and it could go on; kInvalid: `size` bytes are the maximal part to replace.
Scan scan(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  const std::uint8_t lead = at(0);
  if (lead < 0x80) return {Part::kComplete, 1};
  std::size_t size = 0;
  std::uint8_t low = 0x80,
               high = 0xbf;  // of the second byte: no overlong forms, surrogates, > 10FFFF
  if (lead >= 0xc2 && lead <= 0xdf) {
    size = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    size = 3;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    size = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  } else {
    return {Part::kInvalid, 1};
  }
  for (std::size_t i = 1; i < size; ++i, low = 0x80, high = 0xbf) {
    if (i == bytes.size()) return {Part::kIncomplete, i};
    if (at(i) < low || at(i) > high) return {Part::kInvalid, i};
  }
  return {Part::kComplete, size};
}

}  // namespace

std::string take_utf8(std::string& bytes, bool is_end) {
  std::string text;
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const Scan next = scan(rest);
    if (next.part == Part::kIncomplete && !is_end) break;
    if (next.part == Part::kComplete) {
      text += rest.substr(0, next.size);
    } else {
      text += "\xEF\xBF\xBD";
    }
    rest.remove_prefix(next.size);
  }
  bytes.erase(0, bytes.size() - rest.size());
  return text;
}

std::size_t utf8_prefix(std::string_view bytes) {
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const Scan next = scan(rest);
    if (next.part != Part::kComplete) break;
    rest.remove_prefix(next.size);
  }
  return bytes.size() - rest.size();
}

}  // namespace dendrite
