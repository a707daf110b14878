#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/http.h"
#include "server/http_listen.h"

// One connection: reads a request, waits for its answer, writes it, and again. Of http*.cpp alone.
namespace dendrite::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
using Clock = std::chrono::steady_clock;

class Connection;

/// What the handles of a reply and its connection share.
struct Wire {
  enum class Phase { kWaiting, kStream, kEnded };

  std::mutex mutex;
  Phase phase = Phase::kWaiting;
  bool gone = false;
  bool scheduled = false;   // a flush is on its way
  std::string out;          // to be written next
  std::size_t writing = 0;  // bytes that the connection has taken and not written
  std::string keep_alive;
  std::vector<Header> headers;
  std::function<void()> on_gone;
  int status = 0;
  Account account;
  std::string said;  // of the answer's body, for the log
  std::size_t told_bytes = 0;
  void say(std::string_view bytes) {
    said += bytes.substr(0, told_bytes - std::min(told_bytes, said.size()));
  }
  // Set before any handle is made:
  std::string id;
  bool head_only = false, chunked = true, persists = true;
};

/// What connections need of their server.
struct ConnectionHost {
  virtual ~ConnectionHost() = default;
  virtual const HttpLimits& limits() const = 0;
  virtual bool stopping() const = 0;
  virtual std::optional<Answer> look(const Request& head, std::vector<Header>& extra) = 0;
  virtual Answer refusal(const Request&, int status, std::string_view code,
                         std::string_view message) const = 0;
  virtual void handle(Request request, Reply reply) = 0;
  virtual std::shared_ptr<Exchange> exchange(const std::shared_ptr<Connection>& connection,
                                             std::shared_ptr<Wire> wire, Request head) = 0;
  virtual void exchanged(const Exchanged& exchanged) = 0;
  virtual void forget(const std::shared_ptr<Connection>& connection) = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Socket socket, ConnectionHost& host);

  // All in the I/O thread:
  void start();
  /// Ends what has taken too long, and keeps streams alive.
  void look_at_time(Clock::time_point now);
  /// Writes what its reply has.
  void flush();
  /// At once; a reply's client is gone.
  void close();
  bool is_idle() const { return place_ == Place::kIdle; }

 private:
  enum class Place { kIdle, kHead, kBody, kAnswer, kLinger, kClosed };

  void wait_for_request();
  void read_head();
  void have_head(beast::error_code error);
  void read_body();
  void have_request();
  void begin_answer();
  void refuse(int status, std::string_view code, std::string_view message);
  void send_and_close(Answer answer);
  void watch_for_end();
  void write_some();
  void answered();
  void linger();
  void discard();
  void tell(bool gone);
  Request request_of_head();

  Socket socket_;
  ConnectionHost& host_;
  Place place_ = Place::kIdle;
  beast::flat_buffer buffer_;
  std::optional<beast::http::request_parser<beast::http::string_body>> parser_;
  Request head_;
  Clock::time_point since_;  // it had come
  std::string asked_;        // of its body, for the log
  std::vector<Header> extra_;
  std::shared_ptr<Wire> wire_;
  std::string writing_;
  std::size_t written_ = 0;
  bool is_writing_ = false, is_watching_ = false;
  bool is_first_ = true;
  bool is_told_ = true;  // of the request: to who keeps a log
  Clock::time_point deadline_;
  Clock::time_point body_since_;
  std::size_t body_bytes_ = 0;
  Clock::time_point last_write_;
};

}  // namespace dendrite::server
