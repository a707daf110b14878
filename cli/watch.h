#pragma once

#include <CLI/CLI.hpp>
#include <memory>

#include "dendrite/dendrite.h"

namespace dendrite::cli {

/// --watch and --plain: a search while it runs, for people.
struct WatchFlags {
  bool watch = false;
  bool plain = false;

  void add_to(CLI::App& app);
};

/// Shows a search on stderr while it lives, if the flags ask for it: as a picture that is redrawn
/// ten times a second, or, where stderr is no terminal or with --plain, as one line an event. Ends
/// with the last picture left on the screen and the terminal as it was, also when a signal ends the
/// program. One at a time.
class Watcher {
 public:
  Watcher(const Session& session, const WatchFlags& flags, std::string title);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  bool active() const { return shown_ != nullptr; }
  /// For SearchEvents of one search on that session.
  void on(const SearchEvent& event);

 private:
  struct Shown;
  std::unique_ptr<Shown> shown_;
};

}  // namespace dendrite::cli
