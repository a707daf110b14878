#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// HTTP/1.1: routes, limits, whole answers and streams of events. The one seam to Boost.Beast, which
// is in http*.cpp and nowhere else.
namespace dendrite::server {

struct Header {
  std::string name, value;
};

struct Request {
  std::string method;            ///< "GET"
  std::string path;              ///< percent-decoded, without the query
  std::string query;             ///< behind '?', as it came
  std::vector<Header> headers;   ///< names in lower case
  std::string body;              ///< empty before the gate
  std::string peer;              ///< address of who asks; empty: at a socket of the file system
  std::string id;                ///< ours: "req_" and 32 hex digits, x-request-id of the reply
  std::vector<std::string> ids;  ///< what stands at each {} of the route's pattern

  /// Of the first header of this name (in lower case); empty: there is none.
  std::string_view header(std::string_view name) const;
  /// The value of `name` in the query, percent-decoded; nullopt: it is not there.
  std::optional<std::string> query_value(std::string_view name) const;
};

/// A whole answer.
struct Answer {
  int status = 200;
  std::string body{};
  std::string type = "application/json";
  std::vector<Header> headers{};
  std::string error{};  ///< what it is called, for Account::error; empty: none
};

/// What is told of a request in the end, beside what HTTP knows of it.
struct Account {
  std::string made;  ///< id of what was made of it: "chatcmpl-..."
  std::int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  std::optional<std::chrono::steady_clock::time_point> first_token{};
  std::vector<std::string> finish{};  ///< of each choice
  std::string error{};                ///< its code, or type
};

/// A request whose answer has ended, or whose client has gone.
struct Exchanged {
  const Request& request;  ///< its head
  const Account& account;
  int status = 0;                                 ///< 0: there was no answer
  bool gone = false;                              ///< the client went before the answer's end
  std::chrono::steady_clock::time_point since{};  ///< its head had come
  /// The beginnings of both bodies, with HttpLimits::told_bytes.
  std::string_view asked{}, said{};
};

class Exchange;

/// Answers one request, whole or as a stream of events; a shared handle, whose functions may be
/// called from any thread and return at once. When the last handle goes without an answer, the
/// client gets status 500. What is said twice, or to a client that is gone, is dropped.
class Reply {
 public:
  explicit Reply(std::shared_ptr<Exchange> exchange);

  /// Adds a header to whatever the answer will be; before send() and begin().
  void header(std::string name, std::string value) const;
  void send(Answer answer) const;

  /// Begins a stream: status 200, text/event-stream. `keep_alive` is sent whenever nothing else was
  /// for the server's time (HttpLimits::keep_alive): a whole comment or event.
  void begin(std::string keep_alive = ": keep-alive\n\n") const;
  /// Whole events, with the empty line behind each; see event() in json.h.
  void write(std::string events) const;
  void end() const;

  /// Called once, in the I/O thread, when the client has gone, or is too slow to take what is
  /// written (HttpLimits::stalled), before the answer has ended; at once if it has gone already.
  void on_gone(std::function<void()> callback) const;
  bool gone() const;
  /// For the log: before the answer ends.
  void account(const std::function<void(Account&)>& add) const;
  /// Bytes that were written and have not been taken by the client's system.
  std::size_t unsent() const;

 private:
  std::shared_ptr<Exchange> exchange_;
};

using Handler = std::function<void(Request, Reply)>;
/// Looks at a request's head, before its body is read. An answer: that is sent, and the body is not
/// read. `extra`: headers that go with whatever the answer will be.
using Gate = std::function<std::optional<Answer>(const Request&, std::vector<Header>& extra)>;
/// The answer's form for what is refused here: 400, 404, 405, 408, 413, 431, 500, 503. `code` may
/// be empty.
using Refuse = std::function<Answer(const Request&, int status, std::string_view code,
                                    std::string_view message)>;

struct HttpLimits {
  std::size_t request_line = 8 << 10;
  std::size_t header_bytes = 16 << 10;  ///< the request line included
  std::size_t headers = 100;
  std::size_t body_bytes = std::size_t{32} << 20;
  std::size_t connections = 20000;
  std::size_t unsent_bytes = std::size_t{64} << 20;  ///< of one reply; beyond, the client is gone
  std::chrono::milliseconds head_time{10'000};       ///< for all of a request's head
  std::chrono::milliseconds body_slack{10'000};      ///< for a body, beside a second for each KiB
  std::chrono::milliseconds idle{120'000};           ///< between two requests
  std::chrono::milliseconds stalled{60'000};         ///< nothing taken of what is unsent
  std::chrono::milliseconds keep_alive{15'000};      ///< silence of a stream
  std::size_t told_bytes = 0;                        ///< of each body, for on_exchanged()
};

/// Serves in the one thread that calls run(). Handlers and gates are called there, and must be
/// quick.
class HttpServer {
 public:
  HttpServer(HttpLimits limits, Refuse refuse);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// `pattern`: a path, in which {} stands for one part of it: "/v1/responses/{}/cancel". Before
  /// run() alone.
  void route(std::string method, std::string pattern, Handler handler);
  /// Methods and patterns of all that was added.
  std::vector<std::pair<std::string, std::string>> routes() const;
  void gate(Gate gate);
  /// Hears of each request in the end, in the thread of run(). Before run() alone.
  void on_exchanged(std::function<void(const Exchanged&)> function);

  /// Binds; `port` 0: any. Throws Error naming both where that can't be.
  void listen(const std::string& host, std::uint16_t port);
  /// Instead: at a socket in the file system, for this user alone (mode 0600). One that is there
  /// and that nobody listens at is removed, and this one when the server stops. Throws Error.
  void listen_at(const std::string& path);
  std::uint16_t port() const;
  /// Returns after stop(), when all exchanges have ended or its time is up.
  void run();
  /// From any thread: takes no further connections, and closes idle ones. `limit`: what has not
  /// ended by then is cut off.
  void stop(std::chrono::milliseconds limit);
  /// Called in the thread of run(), instead of what these signals do by default.
  void on_signals(const std::vector<int>& signals, std::function<void()> function);
  bool stopping() const;

  /// Calls it in the thread of run(), soon. From any thread.
  void post(std::function<void()> function);
  /// Calls it there again and again, from run() on.
  void every(std::chrono::milliseconds time, std::function<void()> function);
  std::size_t connections() const;

 private:
  friend class Exchange;
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace dendrite::server
