// Any bytes sent to a listening server: what it answers is HTTP, it closes the connection when the
// client does, and answers the next client.
#include <sys/socket.h>

#include <string>
#include <thread>

#include "fuzz.h"
#include "server/http.h"
#include "server/http_client.h"

namespace {

using namespace dendrite::server;

Answer refusal(const Request&, int status, std::string_view, std::string_view message) {
  return {.status = status, .body = std::string(message), .type = "text/plain"};
}

/// Echoes bodies, whole and as a stream, by a gate that looks at every head.
class Echo {
 public:
  Echo() {
    http_.gate([](const Request& request, std::vector<Header>& extra) -> std::optional<Answer> {
      extra.push_back({"x-host", std::string(request.header("host"))});
      if (request.path == "/closed") return Answer{.status = 401};
      return std::nullopt;
    });
    http_.route("POST", "/echo",
                [](Request request, const Reply& reply) { reply.send({.body = request.body}); });
    http_.route("GET", "/things/{}/parts/{}", [](const Request& request, const Reply& reply) {
      reply.header("x-part", request.ids.at(1));
      reply.send({.body = request.ids.at(0) + request.query_value("a").value_or("")});
    });
    http_.route("POST", "/stream", [](const Request& request, const Reply& reply) {
      reply.begin();
      reply.write("data: " + request.body + "\n\n");
      reply.end();
    });
    http_.listen("127.0.0.1", 0);
    thread_ = std::thread([this] { http_.run(); });
  }
  ~Echo() {
    http_.stop(milliseconds(0));
    thread_.join();
  }
  std::uint16_t port() const { return http_.port(); }

 private:
  static HttpLimits limits() {
    HttpLimits out;
    out.body_bytes = 4096;
    out.header_bytes = 2048;
    out.headers = 20;
    out.request_line = 512;
    return out;
  }
  HttpServer http_{limits(), refusal};
  std::thread thread_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Echo server;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  {
    Client client(server.port());
    fuzz_check(client.connected(), "a client can connect");
    client.send(bytes);
    // An end at once means that nobody waits for the answer, so it mostly comes a little later.
    std::string got = size % 8 == 0 ? "" : client.some(milliseconds(2));
    shutdown(client.socket_of(), SHUT_WR);
    got += client.rest();
    fuzz_check(got.empty() || got.starts_with("HTTP/1.1 "), "answers are HTTP");
    fuzz_check(!got.starts_with("HTTP/1.1 500"), "nothing fails");
  }
  Client honest(server.port());
  honest.send(request_text("POST", "/echo", "still here", "Connection: close\r\n"));
  const Got got = honest.answer();
  fuzz_check(got.status == 200 && got.body == "still here", "the next client is answered");
  return 0;
}
