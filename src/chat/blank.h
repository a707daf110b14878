#pragma once

#include <string>
#include <string_view>

namespace dendrite::chats {

constexpr std::string_view kBlanks = " \t\n\r\f\v";

inline bool is_blank(char c) {
  return kBlanks.find(c) != std::string_view::npos;
}

inline bool is_blank(std::string_view text) {
  return text.find_first_not_of(kBlanks) == std::string_view::npos;
}

/// Without blanks at both ends.
inline std::string_view stripped(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

}  // namespace dendrite::chats
