#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "dendrite/error.h"
#include "http_client.h"
#include "server/serve.h"

// A server in this process.
namespace dendrite::server {

/// A shipped model's engine behind a server on any port of loopback.
class TestServer {
 public:
  explicit TestServer(const Engine& engine, ServerOptions options = {})
      : TestServer(std::vector<ServedModel>{{engine}}, std::move(options)) {}
  explicit TestServer(std::vector<ServedModel> models, ServerOptions options = {})
      : server_(std::move(models), with_any_port(std::move(options))),
        thread_([this] { server_.run(); }) {}
  ~TestServer() { stop(); }
  void stop() {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }
  void begin_stop() { server_.stop(); }
  std::uint16_t port() const { return server_.port(); }
  std::vector<std::pair<std::string, std::string>> routes() const { return server_.routes(); }

  Got ask(const std::string& method, const std::string& path, const std::string& body = {},
          const std::string& headers = {}) const {
    Client client(port());
    client.send(request_text(method, path, body, headers));
    return client.answer(method != "HEAD");
  }
  Got get(const std::string& path) const { return ask("GET", path); }
  Got post(const std::string& path, const Json& body, const std::string& headers = {}) const {
    return ask("POST", path, dump(body), headers);
  }

 private:
  static ServerOptions with_any_port(ServerOptions options) {
    options.port = 0;
    return options;
  }
  Server server_;
  std::thread thread_;
};

/// The data of a stream's events, without [DONE].
inline std::vector<Json> events_of(const std::string& body) {
  std::vector<Json> out;
  for (std::size_t at = body.find("data: "); at != std::string::npos;) {
    const std::size_t end = body.find('\n', at);
    const std::string data = body.substr(at + 6, end - at - 6);
    if (data != "[DONE]") out.push_back(Json::parse(data));
    at = body.find("data: ", end);
  }
  return out;
}

/// Tries until it holds, for ten seconds.
inline bool soon(const std::function<bool()>& holds) {
  for (int i = 0; i < 1000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

inline Engine shipped(const std::string& name = "dendrite-24", std::int64_t kv_tokens = 65536) {
  EngineOptions options;
  options.threads = 1;
  options.kv_tokens = kv_tokens;
  return Engine::load(std::string(DENDRITE_MODELS_DIR) + "/" + name, options);
}

}  // namespace dendrite::server
