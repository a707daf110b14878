#pragma once

#include <functional>

#include "server/service.h"

namespace dendrite::server {

/// A model that is served.
struct ServedModel {
  Engine engine;
  std::vector<std::string> names{};  ///< as requests name it; empty: as its folder
};

/// Serves until SIGTERM or SIGINT, then ends what is under way, for the time of the options at
/// most. `listening` hears the address once it can be asked. Throws Error for options that cannot
/// be: a port in use, an address that others reach without a key.
void serve(std::vector<ServedModel> models, const ServerOptions& options,
           const std::function<void(const std::string& url)>& listening);

/// The same, for who has signals and threads of their own.
class Server {
 public:
  Server(std::vector<ServedModel> models, const ServerOptions& options);
  ~Server();
  std::uint16_t port() const;
  std::string url() const;
  /// Methods and paths that it answers, in which {} stands for one part: what /openapi.json tells
  /// of.
  std::vector<std::pair<std::string, std::string>> routes() const;
  /// Returns after stop().
  void run();
  /// These signals stop it.
  void on_signals(const std::vector<int>& signals);
  /// From any thread: drains, and ends what has not ended by the options' time.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dendrite::server
