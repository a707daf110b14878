#include "server/http_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <cctype>
#include <cstring>

#include "server/http_text.h"
#include "server/ids.h"

namespace dendrite::server {
namespace {

namespace http = beast::http;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kMostAhead = 16 << 10;  // bytes of further requests during an answer
constexpr seconds kLingerTime{2};

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

}  // namespace

Connection::Connection(Socket socket, ConnectionHost& host)
    : socket_(std::move(socket)), host_(host), buffer_(std::size_t{128} << 10) {}

void Connection::start() {
  beast::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  wait_for_request();
}

void Connection::wait_for_request() {
  place_ = Place::kIdle;
  const HttpLimits& limits = host_.limits();
  deadline_ = Clock::now() + (is_first_ ? limits.head_time : limits.idle);
  is_first_ = false;
  if (buffer_.size() > 0) return read_head();
  socket_.async_wait(asio::socket_base::wait_read,
                     [self = shared_from_this()](beast::error_code error) {
                       if (self->place_ != Place::kIdle) return;
                       if (error) return self->close();
                       self->read_head();
                     });
}

void Connection::read_head() {
  place_ = Place::kHead;
  deadline_ = Clock::now() + host_.limits().head_time;
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(host_.limits().header_bytes));
  parser_->body_limit(host_.limits().body_bytes);
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](beast::error_code error, std::size_t) {
                            if (self->place_ == Place::kHead) self->have_head(error);
                          });
}

Request Connection::request_of_head() {
  const auto& message = parser_->get();
  Request out;
  out.id = "req_" + random_hex(16);
  out.method = std::string(message.method_string());
  beast::error_code ignored;
  const auto endpoint = socket_.remote_endpoint(ignored);
  const int family = endpoint.protocol().family();
  if (!ignored && (family == AF_INET || family == AF_INET6)) {
    asio::ip::tcp::endpoint internet;
    std::memcpy(internet.data(), endpoint.data(), endpoint.size());
    internet.resize(endpoint.size());
    out.peer = internet.address().to_string();
  }
  for (const auto& field : message) {
    out.headers.push_back({lower_case(field.name_string()), std::string(field.value())});
  }
  return out;
}

void Connection::have_head(beast::error_code error) {
  const HttpLimits& limits = host_.limits();
  head_ = {};
  extra_.clear();
  begin_answer();
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return refuse(431, "",
                  "the head of the request is too large; expected at most " +
                      std::to_string(limits.header_bytes) + " bytes");
  }
  if (error == http::error::body_limit) {
    return refuse(
        413, "",
        "the body is too large; expected at most " + std::to_string(limits.body_bytes) + " bytes");
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message) return close();
  if (error && error.category() != beast::error_code(http::error::bad_method).category()) {
    return close();
  }
  if (error) return refuse(400, "", "this is no request of HTTP/1.1: " + error.message());
  head_ = request_of_head();
  is_told_ = false;
  begin_answer();
  const auto& message = parser_->get();
  const std::string_view target(message.target().data(), message.target().size());
  if (head_.headers.size() > limits.headers || target.size() > limits.request_line) {
    return refuse(431, "", "the head of the request has too many headers, or too long a path");
  }
  const std::size_t query = std::min(target.find('?'), target.size());
  std::optional<std::string> path = percent_decoded(target.substr(0, query));
  if (!path || !path->starts_with('/')) {
    return refuse(400, "", "the path of the request is none; expected one that begins with /");
  }
  head_.path = std::move(*path);
  head_.query = std::string(target.substr(std::min(query + 1, target.size())));
  if (std::optional<Answer> answer = host_.look(head_, extra_)) {
    wire_->headers.insert(wire_->headers.end(), extra_.begin(), extra_.end());
    return send_and_close(std::move(*answer));
  }
  wire_->headers.insert(wire_->headers.end(), extra_.begin(), extra_.end());
  place_ = Place::kBody;
  body_since_ = Clock::now();
  body_bytes_ = 0;
  if (parser_->is_done()) return have_request();
  if (lower_case(head_.header("expect")) == "100-continue") {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    asio::async_write(socket_, asio::buffer(kContinue),
                      [self = shared_from_this()](beast::error_code failed, std::size_t) {
                        if (self->place_ != Place::kBody) return;
                        if (failed) return self->close();
                        self->read_body();
                      });
    return;
  }
  read_body();
}

void Connection::read_body() {
  http::async_read_some(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](beast::error_code error, std::size_t bytes) {
        if (self->place_ != Place::kBody) return;
        self->body_bytes_ += bytes;
        if (error == http::error::body_limit) {
          return self->refuse(413, "",
                              "the body is too large; expected at most " +
                                  std::to_string(self->host_.limits().body_bytes) + " bytes");
        }
        if (error &&
            (error.category() != beast::error_code(http::error::bad_method).category() ||
             error == http::error::end_of_stream || error == http::error::partial_message)) {
          return self->close();
        }
        if (error) {
          return self->refuse(400, "", "the body is none of HTTP/1.1: " + error.message());
        }
        if (!self->parser_->is_done()) return self->read_body();
        self->have_request();
      });
}

void Connection::begin_answer() {
  wire_ = std::make_shared<Wire>();
  wire_->told_bytes = host_.limits().told_bytes;
  since_ = Clock::now();
  asked_.clear();
  if (!parser_->is_header_done()) {
    wire_->id = "req_" + random_hex(16);
    wire_->persists = false;
    return;
  }
  const auto& message = parser_->get();
  wire_->id = head_.id;
  wire_->head_only = message.method() == http::verb::head;
  wire_->chunked = message.version() >= 11;
  wire_->persists = message.keep_alive() && message.version() >= 11 && !host_.stopping();
}

void Connection::have_request() {
  place_ = Place::kAnswer;
  last_write_ = Clock::now();
  Request request = head_;
  request.body = std::move(parser_->get().body());
  asked_ = request.body.substr(0, wire_->told_bytes);
  Reply reply(host_.exchange(shared_from_this(), wire_, head_));
  watch_for_end();
  host_.handle(std::move(request), std::move(reply));
}

void Connection::refuse(int status, std::string_view code, std::string_view message) {
  send_and_close(host_.refusal(head_, status, code, message));
}

/// The body has not been read: no further request can be.
void Connection::send_and_close(Answer answer) {
  place_ = Place::kAnswer;
  last_write_ = Clock::now();
  wire_->persists = false;
  is_told_ = false;
  Reply(host_.exchange(shared_from_this(), wire_, head_)).send(std::move(answer));
}

/// The end of what a client sends means that it is gone.
void Connection::watch_for_end() {
  if (is_watching_) return;
  is_watching_ = true;
  socket_.async_wait(
      asio::socket_base::wait_read, [self = shared_from_this()](beast::error_code error) {
        self->is_watching_ = false;
        if (self->place_ != Place::kAnswer) return;
        if (error) return self->close();
        std::array<char, 4096> bytes;
        const ssize_t got = recv(self->socket_.native_handle(), bytes.data(), bytes.size(), 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
          return self->close();
        }
        if (got > 0) {
          const auto count = static_cast<std::size_t>(got);
          if (self->buffer_.size() + count > kMostAhead) return self->close();
          asio::buffer_copy(self->buffer_.prepare(count), asio::buffer(bytes.data(), count));
          self->buffer_.commit(count);
        }
        self->watch_for_end();
      });
}

void Connection::flush() {
  {
    const std::lock_guard lock(wire_->mutex);
    wire_->scheduled = false;
  }
  if (place_ == Place::kAnswer && !is_writing_) write_some();
}

void Connection::write_some() {
  if (written_ == writing_.size()) {
    writing_.clear();
    written_ = 0;
    const std::lock_guard lock(wire_->mutex);
    writing_.swap(wire_->out);
    wire_->writing = writing_.size();
    if (writing_.empty() && wire_->phase != Wire::Phase::kEnded) return;
  }
  if (writing_.empty()) return answered();
  if (!is_writing_) last_write_ = Clock::now();
  is_writing_ = true;
  socket_.async_write_some(asio::buffer(writing_) + written_,
                           [self = shared_from_this()](beast::error_code error, std::size_t bytes) {
                             self->is_writing_ = false;
                             if (self->place_ != Place::kAnswer) return;
                             if (error) return self->close();
                             self->last_write_ = Clock::now();
                             self->written_ += bytes;
                             {
                               const std::lock_guard lock(self->wire_->mutex);
                               self->wire_->writing -= bytes;
                             }
                             self->write_some();
                           });
}

void Connection::answered() {
  std::function<void()> unused;  // what goes with it may be the last handle, which takes the lock
  {
    const std::lock_guard lock(wire_->mutex);
    unused.swap(wire_->on_gone);
  }
  unused = nullptr;
  tell(false);
  if (!wire_->persists || host_.stopping()) return linger();
  wait_for_request();
}

/// Once of each request.
void Connection::tell(bool gone) {
  if (std::exchange(is_told_, true)) return;
  Account account;
  std::string said;
  int status = 0;
  {
    const std::lock_guard lock(wire_->mutex);
    account = wire_->account;
    said.swap(wire_->said);
    status = wire_->status;
  }
  if (head_.id.empty()) head_.id = wire_->id;  // of a head that could not be read
  host_.exchanged({head_, account, status, gone, since_, asked_, said});
}

/// Closes so that the client can read the answer even where it is still sending.
void Connection::linger() {
  place_ = Place::kLinger;
  deadline_ = Clock::now() + kLingerTime;
  beast::error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  discard();
}

void Connection::discard() {
  socket_.async_wait(
      asio::socket_base::wait_read, [self = shared_from_this()](beast::error_code error) {
        if (self->place_ != Place::kLinger) return;
        std::array<char, 16384> bytes;
        const ssize_t got =
            error ? 0 : recv(self->socket_.native_handle(), bytes.data(), bytes.size(), 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
          return self->close();
        }
        self->discard();
      });
}

void Connection::close() {
  if (place_ == Place::kClosed) return;
  place_ = Place::kClosed;
  beast::error_code ignored;
  socket_.close(ignored);
  if (wire_) {
    std::function<void()> on_gone;
    {
      const std::lock_guard lock(wire_->mutex);
      wire_->gone = true;
      wire_->out.clear();
      on_gone.swap(wire_->on_gone);
    }
    tell(true);
    if (on_gone) on_gone();
  }
  host_.forget(shared_from_this());
}

void Connection::look_at_time(Clock::time_point now) {
  const HttpLimits& limits = host_.limits();
  switch (place_) {
    case Place::kIdle:
    case Place::kLinger:
      if (now > deadline_) close();
      return;
    case Place::kHead:
      if (now <= deadline_) return;
      socket_.cancel();
      head_ = {};
      begin_answer();
      wire_->persists = false;
      return refuse(408, "", "the head of the request did not come in time");
    case Place::kBody:
      if (now <= body_since_ + limits.body_slack + seconds(body_bytes_ >> 10)) return;
      socket_.cancel();
      return refuse(408, "", "the body of the request did not come in time");
    case Place::kAnswer: {
      if (is_writing_) {
        if (now > last_write_ + limits.stalled) close();
        return;
      }
      if (now <= last_write_ + limits.keep_alive) return;
      last_write_ = now;
      const std::lock_guard lock(wire_->mutex);
      if (wire_->phase != Wire::Phase::kStream || !wire_->out.empty()) return;
      wire_->out = wire_->keep_alive;
      break;
    }
    case Place::kClosed:
      return;
  }
  flush();
}

}  // namespace dendrite::server
