#include "observe.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace dendrite::cli {

void ObserveFlags::add_to(CLI::App& app) {
  app.add_option("--events", events,
                 "Write what the engine does there, one JSON object a line; -: stderr")
      ->type_name("FILE");
  app.add_option("--metrics", metrics,
                 "Write the engine's statistics there at the end, as Prometheus text; -: stderr")
      ->type_name("FILE");
}

void Observer::Close::operator()(std::FILE* file) const {
  if (file != stderr) std::fclose(file);
}

Observer::File Observer::open(const std::string& path) {
  if (path.empty()) return nullptr;
  if (path == "-") return File(stderr);
  File file(std::fopen(path.c_str(), "w"));
  if (file == nullptr) {
    throw Error(path + ": cannot be written (" + std::strerror(errno) +
                "); expected a path for a file");
  }
  return file;
}

Observer::Observer(const Engine& engine, const ObserveFlags& flags)
    : engine_(engine), events_(open(flags.events)), metrics_(open(flags.metrics)) {
  if (events_ == nullptr) return;
  subscription_ = engine.on_event(kAllEvents, [file = events_.get()](const Event& event) {
    std::string line = to_json_line(event);
    line += '\n';
    std::fwrite(line.data(), 1, line.size(), file);
  });
}

Observer::~Observer() {
  if (metrics_ == nullptr) return;
  const std::string text = to_prometheus(engine_.stats());
  std::fwrite(text.data(), 1, text.size(), metrics_.get());
}

}  // namespace dendrite::cli
