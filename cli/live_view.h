#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "dendrite/dendrite.h"
#include "tree_screen.h"

namespace dendrite::cli {

struct TerminalSize {
  int columns = 80;
  int rows = 24;
};

/// Where a live view draws, and what it draws besides the tree.
struct ViewPort {
  std::function<void(std::string_view)> write;
  std::function<std::optional<TerminalSize>()> size;  ///< nullopt: one line an event, no drawing
  std::function<Stats()> stats;                       ///< of the session that searches
  std::function<double()> seconds;                    ///< since the search began
  Paint paint{};
};

/// A search while it runs: the tree and a status below it, drawn over itself in place; or, where
/// there is no terminal, each event as a line of plain text. Used by one thread at a time.
class LiveView {
 public:
  LiveView(ViewPort port, std::string title);
  /// Ends the view: the last state stays on the screen, the cursor is back.
  void close();

  void on(const SearchEvent& event);
  /// Draws what there is now; without a terminal, nothing.
  void draw();

 private:
  std::vector<std::string> frame(TerminalSize size);
  /// Speed, sharing and progress, in at most `rows` lines.
  std::vector<std::string> status(int columns, int rows);
  double tokens_per_second(std::int64_t tokens, double now);

  ViewPort port_;
  std::string title_;
  TreeScreen tree_;
  std::deque<std::pair<double, std::int64_t>> samples_;  // seconds and tokens computed by then
  TerminalSize size_;                                    // of the last picture
  std::size_t drawn_ = 0;                                // its lines; the cursor is below them
};

/// Puts a terminal back as it was before a live view; safe in a signal handler.
inline constexpr std::string_view kRestoreTerminal = "\033[?7h\033[?25h";

/// An event as a line of text, without time and line end.
std::string to_line(const SearchEvent& event);

}  // namespace dendrite::cli
