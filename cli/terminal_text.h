#pragma once

#include <string>
#include <string_view>

namespace dendrite::cli {

/// Sequences that colour what follows; empty: plain.
struct Paint {
  const char* dim = "";
  const char* good = "";
  const char* bold = "";
  const char* off = "";
};

inline constexpr Paint kAnsiPaint = {"\033[2m", "\033[32m", "\033[1m", "\033[0m"};

/// Text that fits on a line of a terminal.
struct Line {
  std::string text;
  int columns = 0;  ///< that a terminal gives it
};

inline constexpr int kAnyColumns = 1 << 30;

/// Text of a model as one line that can do no harm to a terminal: line ends within it become a
/// visible sign, those around it go, control characters and invalid UTF-8 become U+FFFD; what is
/// wider than `columns` ends with an ellipsis.
Line one_line(std::string_view text, int columns = kAnyColumns);

}  // namespace dendrite::cli
