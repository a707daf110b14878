#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace dendrite {

/// A fixed number of worker threads behind one seam. Workers sleep between regions; the caller
/// takes part. Nothing computed may depend on the number of threads.
class ThreadPool {
 public:
  /// Requires threads >= 1. One thread means: run everything in the caller, start nothing.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  /// Calls fn(begin, end) over disjoint ranges that cover [0, count), each at least `grain` long
  /// where possible, and returns when all are done. fn must not throw.
  void parallel_for(std::int64_t count, std::int64_t grain,
                    const std::function<void(std::int64_t, std::int64_t)>& fn) const;

 private:
  struct Impl;
  int threads_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dendrite
