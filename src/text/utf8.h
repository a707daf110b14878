#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dendrite {

/// Turns a stream of bytes into UTF-8 text: gives all characters that `bytes` completes and removes
/// them from it. Each maximal part that starts a character but cannot be finished becomes one
/// U+FFFD (Unicode 15, table 3-8; Rust's and Python's replacement). What may still become a
/// character, at most 3 bytes, stays in `bytes`; with `is_end` it becomes U+FFFD too.
std::string take_utf8(std::string& bytes, bool is_end);

/// How many bytes at the front of `bytes` are whole characters of UTF-8.
std::size_t utf8_prefix(std::string_view bytes);
/// Whether `bytes` is UTF-8 from the first to the last byte.
inline bool is_utf8(std::string_view bytes) {
  return utf8_prefix(bytes) == bytes.size();
}

}  // namespace dendrite
