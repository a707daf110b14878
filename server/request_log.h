#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "server/service.h"

namespace dendrite::server {

/// A line of JSON for each request, with all that is not printable ASCII escaped.
std::string log_line(const Service& service, const Exchanged& exchanged);

/// Writes lines to a descriptor in a thread of its own. Who does not read them holds nobody up:
/// beyond 4 MiB they are dropped, which the next line that is written says.
class RequestLog {
 public:
  explicit RequestLog(int descriptor);
  /// What is left is written, while somebody takes it.
  ~RequestLog();
  RequestLog(const RequestLog&) = delete;
  RequestLog& operator=(const RequestLog&) = delete;

  void add(const std::string& line);

 private:
  void loop();
  bool write(std::string_view text);

  int descriptor_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::string waiting_;
  std::int64_t dropped_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace dendrite::server
