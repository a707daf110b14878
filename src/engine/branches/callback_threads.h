#pragma once

#include <mutex>
#include <thread>
#include <vector>

namespace dendrite {

/// Threads that are in one of the caller's functions, in which nothing may wait for a call.
class CallbackThreads {
 public:
  /// This thread, while it lives.
  class Scope {
   public:
    explicit Scope(CallbackThreads& threads);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CallbackThreads& threads_;
  };

  /// Throws BranchBusy where this thread is one of them. `what`: for what it would wait.
  void refuse_wait(const char* what) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::thread::id> inside_;
};

}  // namespace dendrite
