#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "server/json.h"

// A client of plain sockets that can be as rude as it likes.
namespace dendrite::server {

using std::chrono::milliseconds;

/// For an answer, also where a sanitizer takes its time on a machine that is shared.
constexpr milliseconds kPatience{120'000};

struct Got {
  int status = 0;
  std::string head, body;
  Json json() const { return Json::parse(body, nullptr, false); }
  /// Of the first header of this name; empty: none.
  std::string header(const std::string& name) const {
    const std::size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return "";
    const std::size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
};

/// One connection to loopback.
class Client {
 public:
  explicit Client(std::uint16_t port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  bool connected() const { return connected_; }
  int socket_of() const { return socket_; }
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  /// Some bytes; empty: the end, or none in this time.
  std::string some(milliseconds time = kPatience) {
    pollfd wait{socket_, POLLIN, 0};
    if (poll(&wait, 1, static_cast<int>(time.count())) <= 0) return "";
    char bytes[16384];
    const ssize_t got = recv(socket_, bytes, sizeof bytes, 0);
    return got > 0 ? std::string(bytes, static_cast<std::size_t>(got)) : "";
  }
  /// All until the server closes.
  std::string rest(milliseconds time = kPatience) {
    std::string out = std::exchange(ahead_, "");
    for (std::string more = some(time); !more.empty(); more = some(time)) out += more;
    return out;
  }
  /// One answer, whole; chunks are put together.
  Got answer(bool has_body = true) {
    Got got;
    if (!until("\r\n\r\n", got.head)) return got;
    got.status = std::stoi(got.head.substr(9, 3));
    if (!has_body) return got;
    if (got.head.find("Transfer-Encoding: chunked") != std::string::npos) {
      for (;;) {
        std::string line;
        if (!until("\r\n", line)) return got;
        const std::size_t length = std::stoul(line, nullptr, 16);
        std::string chunk;
        take(length + 2, chunk);
        if (length == 0) return got;
        got.body += chunk.substr(0, length);
      }
    }
    if (const std::string length = got.header("Content-Length"); !length.empty()) {
      take(std::stoul(length), got.body);
    }
    return got;
  }
  /// Waits for these bytes, and takes all up to their end.
  bool until(std::string_view end, std::string& out) {
    std::size_t at = ahead_.find(end);
    while (at == std::string::npos) {
      const std::string more = some();
      if (more.empty()) return false;
      ahead_ += more;
      at = ahead_.find(end);
    }
    out = ahead_.substr(0, at + end.size());
    ahead_.erase(0, at + end.size());
    return true;
  }

 private:
  void take(std::size_t count, std::string& out) {
    while (ahead_.size() < count) {
      const std::string more = some();
      if (more.empty()) break;
      ahead_ += more;
    }
    out = ahead_.substr(0, count);
    ahead_.erase(0, count);
  }

  int socket_;
  bool connected_ = false;
  std::string ahead_;
};

inline std::string request_text(const std::string& method, const std::string& path,
                                const std::string& body = {}, const std::string& headers = {}) {
  std::string out = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers;
  if (!body.empty() || method == "POST") {
    out +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  return out + "\r\n" + body;
}

}  // namespace dendrite::server
