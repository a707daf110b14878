#include "server/request_log.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>

#include "server/ids.h"
#include "server/json.h"

namespace dendrite::server {
namespace {

constexpr std::size_t kMostWaiting = std::size_t{4} << 20;
constexpr std::size_t kPiece = 4096;  // what a pipe takes at once if it takes anything
constexpr int kPatienceMs = 1000;     // for who reads nothing, at the end
constexpr std::size_t kMostPath = 1024;

std::string utc(std::chrono::system_clock::time_point time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
  const std::time_t seconds = ms.count() / 1000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char day[32];
  char text[48];
  std::strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text, sizeof text, "%s.%03dZ", day, static_cast<int>(ms.count() % 1000));
  return text;
}

double ms_between(std::chrono::steady_clock::time_point from,
                  std::chrono::steady_clock::time_point to) {
  return static_cast<double>(
             std::chrono::duration_cast<std::chrono::microseconds>(to - from).count()) /
         1000;
}

/// Tells keys apart, and has too few bits of one for anybody to find the rest.
std::string name_of_key(const std::string& key) {
  return hash_hex(key).substr(0, 8);
}

}  // namespace

std::string log_line(const Service& service, const Exchanged& exchanged) {
  const Request& request = exchanged.request;
  const Account& account = exchanged.account;
  const std::uint64_t key = service.caller(request).key;
  Json line = {{"time", utc(std::chrono::system_clock::now())},
               {"id", request.id},
               {"made", account.made.empty() ? Json() : Json(account.made)},
               {"key", key == 0 ? Json() : Json(name_of_key(service.options.api_keys.at(key - 1)))},
               {"peer", request.peer},
               {"method", request.method},
               {"path", request.path.substr(0, kMostPath)},
               {"status", exchanged.status == 0 ? Json() : Json(exchanged.status)},
               {"gone", exchanged.gone},
               {"ms", ms_between(exchanged.since, std::chrono::steady_clock::now())}};
  if (account.first_token) {
    line["first_token_ms"] = ms_between(exchanged.since, *account.first_token);
  }
  if (account.prompt_tokens > 0) {
    line["prompt_tokens"] = account.prompt_tokens;
    line["cached_tokens"] = account.cached_tokens;
    line["output_tokens"] = account.output_tokens;
  }
  if (!account.finish.empty()) line["finish"] = account.finish;
  if (!account.error.empty()) line["error"] = account.error;
  if (service.options.log_content) {
    line["request"] = exchanged.asked;
    line["answer"] = exchanged.said;
  }
  return line.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
}

RequestLog::RequestLog(int descriptor) : descriptor_(descriptor), thread_([this] { loop(); }) {}

RequestLog::~RequestLog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void RequestLog::add(const std::string& line) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() + line.size() > kMostWaiting) {
      ++dropped_;
      return;
    }
    if (dropped_ > 0) waiting_ += dump({{"dropped", std::exchange(dropped_, 0)}}) + "\n";
    waiting_ += line;
  }
  wake_.notify_one();
}

/// False: it can't be, or nobody takes it at the end.
bool RequestLog::write(std::string_view text) {
  while (!text.empty()) {
    pollfd ready{descriptor_, POLLOUT, 0};
    const int found = poll(&ready, 1, kPatienceMs);
    if (found == 0) {
      const std::lock_guard lock(mutex_);
      if (ending_) return false;
      continue;
    }
    const ssize_t sent =
        found < 0 ? -1 : ::write(descriptor_, text.data(), std::min(text.size(), kPiece));
    if (sent < 0 && errno != EINTR && errno != EAGAIN) return false;
    if (sent > 0) text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

void RequestLog::loop() {
  // Of this thread alone: a descriptor that nobody reads is an error of write().
  sigset_t none_reads;
  sigemptyset(&none_reads);
  sigaddset(&none_reads, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &none_reads, nullptr);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::string text = std::exchange(waiting_, {});
    lock.unlock();
    write(text);
    lock.lock();
  }
}

}  // namespace dendrite::server
