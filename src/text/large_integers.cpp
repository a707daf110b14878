#include "text/large_integers.h"

#include <algorithm>

namespace dendrite {
namespace {

constexpr std::size_t kSafeDigits = 18;  // as many always fit into 64 bits

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The size of the string in front, with its quotes; all of it where it has no end.
std::size_t string_size(std::string_view json) {
  std::size_t at = 1;
  while (at < json.size() && json[at] != '"') at += json[at] == '\\' ? 2 : 1;
  return std::min(at + 1, json.size());
}

}  // namespace

LargeIntegers::LargeIntegers(std::initializer_list<std::string_view> texts) {
  const auto has_mark = [&](std::string_view text) {
    return text.find(mark_) != std::string_view::npos;
  };
  for (int number = 0;; ++number) {
    mark_ = "integer " + std::to_string(number) + ": ";
    if (std::ranges::none_of(texts, has_mark)) return;
  }
}

std::string LargeIntegers::hide(std::string_view json) const {
  std::string out;
  while (!json.empty()) {
    std::size_t size = 1;
    bool is_large = false;
    if (json[0] == '"') {
      size = string_size(json);
    } else if (json[0] == '-' || is_digit(json[0])) {
      const std::size_t end = json.find_first_not_of("0123456789", 1);
      size = std::min(end, json.size());
      const std::string_view digits = json.substr(json[0] == '-' ? 1 : 0, size);
      const bool is_integer = size == json.size() ||
                              std::string_view(".eE+-").find(json[size]) == std::string_view::npos;
      is_large = is_integer && size > kSafeDigits && digits[0] != '0';
      if (!is_integer) size = std::min(json.find_first_not_of("0123456789.eE+-"), json.size());
    }
    if (is_large) out += '"' + mark_;
    out += json.substr(0, size);
    if (is_large) out += '"';
    json.remove_prefix(size);
  }
  return out;
}

std::string LargeIntegers::show(std::string_view json) const {
  std::string out;
  const std::string begin = '"' + mark_;
  for (std::size_t at = json.find(begin); at != std::string_view::npos; at = json.find(begin)) {
    out += json.substr(0, at);
    json.remove_prefix(at + begin.size());
    const std::size_t size = std::min(json.find('"'), json.size());
    out += json.substr(0, size);
    json.remove_prefix(std::min(size + 1, json.size()));
  }
  return out += json;
}

}  // namespace dendrite
