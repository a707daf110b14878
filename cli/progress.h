#pragma once

#include <cstdint>
#include <string>

namespace dendrite::cli {

/// How far something has come, in one line of stderr, if that is a terminal.
class Progress {
 public:
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& what, std::int64_t done, std::int64_t all);
  void clear();

 private:
  std::string shown_;
  bool terminal_;
};

}  // namespace dendrite::cli
