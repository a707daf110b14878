#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace dendrite::server {

/// Threads for what would hold up others: large bodies, templates, tokenizing, grammars.
class Workers {
 public:
  explicit Workers(int threads);
  /// Ends after what is under way; what waits is dropped.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// In the order in which they come. What it throws is lost.
  void run(std::function<void()> work);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> waiting_;
  bool ending_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace dendrite::server
