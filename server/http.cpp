#include "server/http.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <list>
#include <unordered_set>

#include "server/http_connection.h"
#include "server/http_text.h"

namespace dendrite::server {
namespace {

constexpr std::chrono::milliseconds kLookTime{100};  // between two looks at the time

std::string chunk(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string length;
  for (std::size_t rest = bytes.size(); rest > 0; rest >>= 4) length += kDigits[rest & 15];
  return std::string(length.rbegin(), length.rend()).append("\r\n").append(bytes).append("\r\n");
}

}  // namespace

class HttpServer::Impl final : public ConnectionHost, public std::enable_shared_from_this<Impl> {
 public:
  Impl(HttpLimits limits, Refuse refuse) : limits_(limits), refuse_(std::move(refuse)) {}

  const HttpLimits& limits() const override { return limits_; }
  bool stopping() const override { return stopping_; }
  std::optional<Answer> look(const Request& head, std::vector<Header>& extra) override {
    return gate_ ? gate_(head, extra) : std::nullopt;
  }
  Answer refusal(const Request& head, int status, std::string_view code,
                 std::string_view message) const override {
    return refuse_(head, status, code, message);
  }
  void handle(Request request, Reply reply) override;
  std::shared_ptr<Exchange> exchange(const std::shared_ptr<Connection>& connection,
                                     std::shared_ptr<Wire> wire, Request head) override;
  void exchanged(const Exchanged& exchanged) override {
    if (on_exchanged_) on_exchanged_(exchanged);
  }
  void forget(const std::shared_ptr<Connection>& connection) override {
    connections_.erase(connection);
    count_ = connections_.size();
  }

  void run();
  void stop(std::chrono::milliseconds limit);
  void every(std::chrono::milliseconds time, std::function<void()> function);

  struct Route {
    std::string method, pattern;
    Handler handler;
  };
  std::vector<Route> routes_;
  Gate gate_;
  std::function<void(const Exchanged&)> on_exchanged_;
  asio::io_context io_{1};
  Listener listener_{io_};
  asio::signal_set signals_{io_};
  std::atomic<bool> stopping_ = false;
  std::atomic<std::size_t> count_ = 0;

 private:
  void accept();
  void look_at_time();
  void repeat(asio::steady_timer& timer, std::chrono::milliseconds time,
              const std::function<void()>& function);

  HttpLimits limits_;
  Refuse refuse_;
  asio::steady_timer accept_timer_{io_};
  std::list<asio::steady_timer> timers_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  Clock::time_point stop_by_;
};

/// The side of the handles: what they say goes to the wire, and the connection is woken.
class Exchange {
 public:
  Exchange(std::shared_ptr<HttpServer::Impl> server, std::weak_ptr<Connection> connection,
           std::shared_ptr<Wire> wire, Request head)
      : server_(std::move(server)),
        connection_(std::move(connection)),
        wire_(std::move(wire)),
        head_(std::move(head)) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() {
    bool cut = false;
    {
      const std::lock_guard lock(wire_->mutex);
      if (wire_->gone || wire_->phase == Wire::Phase::kEnded) return;
      cut = wire_->phase == Wire::Phase::kStream;
    }
    if (cut) {  // without its end: the client sees that it is broken
      close();
      return;
    }
    send(server_->refusal(head_, 500, "", "the server failed to answer"));
  }

  void header(std::string name, std::string value) {
    const std::lock_guard lock(wire_->mutex);
    wire_->headers.push_back({std::move(name), std::move(value)});
  }

  void send(Answer answer) {
    const std::lock_guard lock(wire_->mutex);
    if (wire_->gone || wire_->phase != Wire::Phase::kWaiting) return;
    wire_->phase = Wire::Phase::kEnded;
    wire_->status = answer.status;
    if (!answer.error.empty()) wire_->account.error = std::move(answer.error);
    wire_->say(answer.body);
    std::vector<Header> headers = std::move(wire_->headers);
    headers.push_back({"x-request-id", wire_->id});
    std::ranges::move(answer.headers, std::back_inserter(headers));
    wire_->out = answer_head(answer.status, answer.status == 204 ? "" : answer.type, headers,
                             answer.body.size(), false, wire_->persists);
    if (!wire_->head_only && answer.status != 204) wire_->out += answer.body;
    wake();
  }

  void begin(std::string keep_alive) {
    const std::lock_guard lock(wire_->mutex);
    if (wire_->gone || wire_->phase != Wire::Phase::kWaiting) return;
    wire_->phase = wire_->head_only ? Wire::Phase::kEnded : Wire::Phase::kStream;
    wire_->persists = wire_->persists && wire_->chunked;
    wire_->status = 200;
    std::vector<Header> headers = std::move(wire_->headers);
    headers.push_back({"x-request-id", wire_->id});
    headers.push_back({"Cache-Control", "no-cache"});
    headers.push_back({"X-Accel-Buffering", "no"});
    wire_->out = answer_head(200, "text/event-stream; charset=utf-8", headers, std::nullopt,
                             wire_->chunked, wire_->persists);
    wire_->keep_alive = wire_->chunked ? chunk(keep_alive) : std::move(keep_alive);
    wake();
  }

  void write(std::string events) {
    if (events.empty()) return;
    const std::lock_guard lock(wire_->mutex);
    if (wire_->gone || wire_->phase != Wire::Phase::kStream) return;
    wire_->say(events);
    wire_->out += wire_->chunked ? chunk(events) : events;
    if (wire_->out.size() > server_->limits().unsent_bytes) return close();
    wake();
  }

  void end() {
    const std::lock_guard lock(wire_->mutex);
    if (wire_->gone || wire_->phase != Wire::Phase::kStream) return;
    wire_->phase = Wire::Phase::kEnded;
    if (wire_->chunked) wire_->out += "0\r\n\r\n";
    wake();
  }

  void on_gone(std::function<void()> callback) {
    {
      const std::lock_guard lock(wire_->mutex);
      if (!wire_->gone) {
        if (wire_->phase != Wire::Phase::kEnded) wire_->on_gone.swap(callback);
        return;
      }
    }
    asio::post(server_->io_, std::move(callback));
  }

  void account(const std::function<void(Account&)>& add) {
    const std::lock_guard lock(wire_->mutex);
    add(wire_->account);
  }

  bool gone() const {
    const std::lock_guard lock(wire_->mutex);
    return wire_->gone;
  }
  std::size_t unsent() const {
    const std::lock_guard lock(wire_->mutex);
    return wire_->out.size() + wire_->writing;
  }

 private:
  void wake() {
    if (std::exchange(wire_->scheduled, true)) return;
    asio::post(server_->io_, [connection = connection_] {
      if (const auto alive = connection.lock()) alive->flush();
    });
  }
  void close() {
    asio::post(server_->io_, [connection = connection_] {
      if (const auto alive = connection.lock()) alive->close();
    });
  }

  std::shared_ptr<HttpServer::Impl> server_;
  std::weak_ptr<Connection> connection_;
  std::shared_ptr<Wire> wire_;
  Request head_;
};

std::shared_ptr<Exchange> HttpServer::Impl::exchange(const std::shared_ptr<Connection>& connection,
                                                     std::shared_ptr<Wire> wire, Request head) {
  return std::make_shared<Exchange>(shared_from_this(), connection, std::move(wire),
                                    std::move(head));
}

void HttpServer::Impl::handle(Request request, Reply reply) {
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  std::string allowed;
  for (const Route& route : routes_) {
    std::optional<std::vector<std::string>> ids = match(route.pattern, request.path);
    if (!ids) continue;
    if (route.method != method) {
      allowed += (allowed.empty() ? "" : ", ") + route.method;
      continue;
    }
    request.ids = std::move(*ids);
    const Request head = [&] {
      Request copy;
      copy.method = request.method;
      copy.path = request.path;
      copy.id = request.id;
      return copy;
    }();
    try {
      route.handler(std::move(request), reply);
    } catch (const std::exception&) {
      reply.send(refuse_(head, 500, "", "the server failed to answer"));
    }
    return;
  }
  if (!allowed.empty()) {
    Answer answer = refuse_(request, 405, "", "this path does not take " + request.method);
    answer.headers.push_back({"Allow", allowed});
    return reply.send(std::move(answer));
  }
  reply.send(refuse_(request, 404, "",
                     "there is nothing at this path; docs/server.md lists what is served"));
}

void HttpServer::Impl::accept() {
  listener_.accept([this](beast::error_code error, Socket socket) {
    if (!listener_.is_open()) return;
    if (error) {  // perhaps no descriptors: others will end
      accept_timer_.expires_after(kLookTime);
      accept_timer_.async_wait([this](beast::error_code cancelled) {
        if (!cancelled && listener_.is_open()) accept();
      });
      return;
    }
    if (connections_.size() < limits_.connections) {
      auto connection = std::make_shared<Connection>(std::move(socket), *this);
      connections_.insert(connection);
      count_ = connections_.size();
      connection->start();
    }
    accept();
  });
}

void HttpServer::Impl::repeat(asio::steady_timer& timer, std::chrono::milliseconds time,
                              const std::function<void()>& function) {
  timer.expires_after(time);
  timer.async_wait([this, &timer, time, function](beast::error_code error) {
    if (error) return;
    function();
    repeat(timer, time, function);
  });
}

void HttpServer::Impl::every(std::chrono::milliseconds time, std::function<void()> function) {
  repeat(timers_.emplace_back(io_), time, function);
}

void HttpServer::Impl::look_at_time() {
  const Clock::time_point now = Clock::now();
  const std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
  for (const auto& connection : all) {
    if (stopping_ && (connection->is_idle() || now > stop_by_)) {
      connection->close();
    } else {
      connection->look_at_time(now);
    }
  }
  if (stopping_ && connections_.empty()) io_.stop();
}

void HttpServer::Impl::run() {
  every(kLookTime, [this] { look_at_time(); });
  accept();
  for (;;) {
    try {
      io_.run();
      return;
    } catch (const std::exception&) {  // of one handler; the others go on
    }
  }
}

void HttpServer::Impl::stop(std::chrono::milliseconds limit) {
  asio::post(io_, [this, limit] {
    if (stopping_.exchange(true)) return;
    stop_by_ = Clock::now() + limit;
    listener_.close();
    look_at_time();
  });
}

Reply::Reply(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
void Reply::header(std::string name, std::string value) const {
  exchange_->header(std::move(name), std::move(value));
}
void Reply::send(Answer answer) const {
  exchange_->send(std::move(answer));
}
void Reply::begin(std::string keep_alive) const {
  exchange_->begin(std::move(keep_alive));
}
void Reply::write(std::string events) const {
  exchange_->write(std::move(events));
}
void Reply::end() const {
  exchange_->end();
}
void Reply::on_gone(std::function<void()> callback) const {
  exchange_->on_gone(std::move(callback));
}
void Reply::account(const std::function<void(Account&)>& add) const {
  exchange_->account(add);
}
bool Reply::gone() const {
  return exchange_->gone();
}
std::size_t Reply::unsent() const {
  return exchange_->unsent();
}

HttpServer::HttpServer(HttpLimits limits, Refuse refuse)
    : impl_(std::make_shared<Impl>(limits, std::move(refuse))) {}
HttpServer::~HttpServer() = default;

void HttpServer::route(std::string method, std::string pattern, Handler handler) {
  impl_->routes_.push_back({std::move(method), std::move(pattern), std::move(handler)});
}
std::vector<std::pair<std::string, std::string>> HttpServer::routes() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& route : impl_->routes_) out.emplace_back(route.method, route.pattern);
  return out;
}
void HttpServer::gate(Gate gate) {
  impl_->gate_ = std::move(gate);
}
void HttpServer::on_exchanged(std::function<void(const Exchanged&)> function) {
  impl_->on_exchanged_ = std::move(function);
}
void HttpServer::listen(const std::string& host, std::uint16_t port) {
  impl_->listener_.listen(host, port);
}
void HttpServer::listen_at(const std::string& path) {
  impl_->listener_.listen_at(path);
}
std::uint16_t HttpServer::port() const {
  return impl_->listener_.port();
}
void HttpServer::run() {
  impl_->run();
}
void HttpServer::stop(std::chrono::milliseconds limit) {
  impl_->stop(limit);
}
bool HttpServer::stopping() const {
  return impl_->stopping_;
}
void HttpServer::on_signals(const std::vector<int>& signals, std::function<void()> function) {
  for (const int signal : signals) impl_->signals_.add(signal);
  impl_->signals_.async_wait([function = std::move(function)](beast::error_code error, int) {
    if (!error) function();
  });
}
void HttpServer::post(std::function<void()> function) {
  asio::post(impl_->io_, std::move(function));
}
void HttpServer::every(std::chrono::milliseconds time, std::function<void()> function) {
  impl_->every(time, std::move(function));
}
std::size_t HttpServer::connections() const {
  return impl_->count_;
}

}  // namespace dendrite::server
