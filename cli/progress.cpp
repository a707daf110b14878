#include "progress.h"

#include <unistd.h>

#include <iostream>
#include <utility>

namespace dendrite::cli {

Progress::Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}

void Progress::show(const std::string& what, std::int64_t done, std::int64_t all) {
  if (!terminal_) return;
  const std::int64_t percent = all > 0 ? 100 * done / all : 100;
  std::string line = what + " " + std::to_string(percent) + " %";
  if (line == shown_) return;
  shown_ = std::move(line);
  std::cerr << "\r\033[K" << shown_ << std::flush;
}

void Progress::clear() {
  if (!shown_.empty()) std::cerr << "\r\033[K" << std::flush;
  shown_.clear();
}

}  // namespace dendrite::cli
