#include "terminal_text.h"

#include <clocale>
#include <cwchar>

namespace dendrite::cli {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";
constexpr std::string_view kLineEnd = "↵";
constexpr std::string_view kEllipsis = "…";

/// This thread reads text as UTF-8 while it lives, whatever the user's locale is.
class Utf8 {
 public:
  Utf8() : before_(uselocale(locale())) {}
  ~Utf8() { uselocale(before_); }
  Utf8(const Utf8&) = delete;
  Utf8& operator=(const Utf8&) = delete;

 private:
  static locale_t locale() {
    static const locale_t made = newlocale(LC_CTYPE_MASK, "C.UTF-8", locale_t{});
    return made;  // null where a system has none: uselocale then changes nothing
  }
  locale_t before_;
};

/// Signs that turn the direction of what follows, and with it the rest of the screen's line.
bool turns_direction(wchar_t sign) {
  return (sign >= 0x202A && sign <= 0x202E) || (sign >= 0x2066 && sign <= 0x2069);
}

struct Sign {
  std::string_view text;
  int columns = 1;
  std::size_t bytes = 1;  // of the source
};

Sign next_sign(std::string_view text) {
  if (text[0] == '\n') return {kLineEnd};
  if (text[0] == '\t') return {" "};
  wchar_t sign = 0;
  std::mbstate_t state{};
  const std::size_t bytes = std::mbrtowc(&sign, text.data(), text.size(), &state);
  if (bytes == 0 || bytes > text.size()) return {kReplacement};  // a zero byte, or no UTF-8
  const int columns = wcwidth(sign);
  if (columns < 0 || turns_direction(sign)) return {kReplacement, 1, bytes};
  return {text.substr(0, bytes), columns, bytes};
}

}  // namespace

Line one_line(std::string_view text, int columns) {
  const auto line_end = [](char c) { return c == '\n' || c == '\r'; };
  while (!text.empty() && line_end(text.front())) text.remove_prefix(1);
  while (!text.empty() && line_end(text.back())) text.remove_suffix(1);
  const Utf8 utf8;
  Line line;
  Line cut;  // the longest beginning that leaves a column for the ellipsis
  while (!text.empty()) {
    const Sign sign = next_sign(text);
    if (line.columns + sign.columns > columns) {
      if (columns <= 0) return {};
      return {cut.text + std::string(kEllipsis), cut.columns + 1};
    }
    line.text += sign.text;
    line.columns += sign.columns;
    if (line.columns < columns) cut = line;
    text.remove_prefix(sign.bytes);
  }
  return line;
}

}  // namespace dendrite::cli
