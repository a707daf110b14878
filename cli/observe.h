#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "dendrite/dendrite.h"

namespace dendrite::cli {

/// --events and --metrics: what the engine does, for programs.
struct ObserveFlags {
  std::string events;   // JSON lines as they happen; "-": stderr; empty: none
  std::string metrics;  // Prometheus text at the end; "-": stderr; empty: none

  void add_to(CLI::App& app);
};

/// Writes what the flags ask for while it lives. Declare it before the session, so that the last
/// events are there. Throws Error when a file cannot be opened.
class Observer {
 public:
  Observer(const Engine& engine, const ObserveFlags& flags);
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

 private:
  struct Close {
    void operator()(std::FILE* file) const;
  };
  using File = std::unique_ptr<std::FILE, Close>;
  static File open(const std::string& path);

  Engine engine_;
  File events_;
  File metrics_;
  EventSubscription subscription_;  // ends before the files do
};

}  // namespace dendrite::cli
