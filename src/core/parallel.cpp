#include "core/parallel.h"

// Three ways to run a region. oneTBB is the one that counts. ThreadSanitizer cannot look into its
// library and would report every region, so under it a region starts threads of its own.
// DENDRITE_NO_TBB: no threads; for tests of single files where there is no oneTBB.
#if defined(DENDRITE_NO_TBB)
#elif defined(__SANITIZE_THREAD__)
#include <algorithm>
#include <thread>
#include <vector>
#else
#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <optional>
#endif

namespace dendrite {

#if defined(DENDRITE_NO_TBB)

struct ThreadPool::Impl {};

ThreadPool::ThreadPool(int) : threads_(1) {}

void ThreadPool::parallel_for(std::int64_t count, std::int64_t,
                              const std::function<void(std::int64_t, std::int64_t)>& fn) const {
  if (count > 0) fn(0, count);
}

#elif defined(__SANITIZE_THREAD__)

struct ThreadPool::Impl {};

ThreadPool::ThreadPool(int threads) : threads_(threads) {}

void ThreadPool::parallel_for(std::int64_t count, std::int64_t grain,
                              const std::function<void(std::int64_t, std::int64_t)>& fn) const {
  if (count <= 0) return;
  const std::int64_t parts =
      std::clamp<std::int64_t>(count / std::max<std::int64_t>(1, grain), 1, threads_);
  std::vector<std::jthread> helpers;  // joined when the region ends
  for (std::int64_t i = 1; i < parts; ++i) {
    helpers.emplace_back(
        [&fn, i, count, parts] { fn(count * i / parts, count * (i + 1) / parts); });
  }
  fn(0, count / parts);
}

#else

struct ThreadPool::Impl {
  // oneTBB has no more workers than cores unless told so, process-wide: only for pools that ask for
  // more, as tests of thread-count independence do.
  std::optional<tbb::global_control> limit;
  tbb::task_arena arena;

  explicit Impl(int threads) : arena(threads) {
    if (threads > tbb::info::default_concurrency()) {
      limit.emplace(tbb::global_control::max_allowed_parallelism,
                    static_cast<std::size_t>(threads));
    }
  }
};

ThreadPool::ThreadPool(int threads)
    : threads_(threads), impl_(threads > 1 ? std::make_unique<Impl>(threads) : nullptr) {}

void ThreadPool::parallel_for(std::int64_t count, std::int64_t grain,
                              const std::function<void(std::int64_t, std::int64_t)>& fn) const {
  if (count <= 0) return;
  if (impl_ == nullptr || count <= grain) {
    fn(0, count);
    return;
  }
  impl_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, count, static_cast<std::size_t>(grain)),
        [&](const tbb::blocked_range<std::int64_t>& range) { fn(range.begin(), range.end()); },
        tbb::static_partitioner{});
  });
}

#endif

ThreadPool::~ThreadPool() = default;

}  // namespace dendrite
