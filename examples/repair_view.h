#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

/// The tree of a race, live: on a terminal it is drawn again in place, elsewhere a line tells each
/// change of state. Safe from several threads.
class RepairView {
 public:
  struct Node {
    std::string name;
    int depth = 1;
    std::string state = "waiting";
    std::int64_t tokens = 0;
    std::string text{};  ///< its last line is shown
  };

  /// A node of state "" is a heading.
  std::size_t add(std::string name, int depth, std::string state = "waiting") {
    const std::lock_guard lock(mutex_);
    nodes_.push_back({.name = std::move(name), .depth = depth, .state = std::move(state)});
    return nodes_.size() - 1;
  }

  /// `change` gets the node and may write to it.
  template <typename Change>
  void update(std::size_t index, Change change) {
    const std::lock_guard lock(mutex_);
    Node& node = nodes_[index];
    const std::string before = node.state;
    change(node);
    if (terminal_) {
      draw();
    } else if (node.state != before) {
      std::printf("%s\n", line_of(node).c_str());
    }
    std::fflush(stdout);
  }

  /// One has passed: what has not failed by then is pruned.
  void finish(std::size_t winner) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      update(i, [&](Node& node) {
        if (i == winner) {
          node.state = "PASSED";
        } else if (!node.state.empty() && !node.state.starts_with("failed")) {
          node.state = "pruned";
        }
      });
    }
  }

 private:
  void draw() {
    if (drawn_ > 0) std::printf("\x1b[%zuA", drawn_);
    for (const Node& each : nodes_) std::printf("%s\x1b[K\n", line_of(each).c_str());
    drawn_ = nodes_.size();
  }

  std::string line_of(const Node& node) const {
    const std::size_t end = node.text.find_last_not_of('\n') + 1;
    const std::size_t begin = end == 0 ? 0 : node.text.rfind('\n', end - 1) + 1;
    std::string line(static_cast<std::size_t>(2 * node.depth), ' ');
    line += node.name;
    if (!node.state.empty()) {
      line += ": " + node.state + ", " + std::to_string(node.tokens) + " tokens  " +
              node.text.substr(begin, end - begin);
    }
    for (char& byte : line) {
      if (static_cast<unsigned char>(byte) < ' ' || byte == '\x7f') byte = ' ';  // no escapes
    }
    std::size_t length = std::min(line.size(), width_);
    while (length < line.size() && (line[length] & 0xc0) == 0x80) --length;  // whole characters
    return line.substr(0, length);
  }

  static std::size_t terminal_width() {
    struct winsize size {};
    return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1U
                                                                             : 100U;
  }

  std::mutex mutex_;
  std::vector<Node> nodes_;
  std::size_t drawn_ = 0;  // lines above the cursor
  bool terminal_ = ::isatty(STDOUT_FILENO) != 0;
  std::size_t width_ = terminal_width();
};
