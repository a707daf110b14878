#include "core/parallel.h"

// DENDRITE_NO_TBB: no threads; for tests of single files on machines without oneTBB.
#if !defined(DENDRITE_NO_TBB)
#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <optional>
#endif

#if defined(__SANITIZE_THREAD__)
// oneTBB's library is not instrumented, so ThreadSanitizer cannot see that a region starts after
// its call and ends before its return. These two calls tell it.
extern "C" void __tsan_acquire(void* addr);
extern "C" void __tsan_release(void* addr);
#define DENDRITE_TSAN_ACQUIRE(addr) __tsan_acquire(addr)
#define DENDRITE_TSAN_RELEASE(addr) __tsan_release(addr)
#else
#define DENDRITE_TSAN_ACQUIRE(addr) (void)(addr)
#define DENDRITE_TSAN_RELEASE(addr) (void)(addr)
#endif

namespace dendrite {

struct ThreadPool::Impl {
#if !defined(DENDRITE_NO_TBB)
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
#endif
};

#if defined(DENDRITE_NO_TBB)

ThreadPool::ThreadPool(int) : threads_(1) {}

void ThreadPool::parallel_for(std::int64_t count, std::int64_t,
                              const std::function<void(std::int64_t, std::int64_t)>& fn) const {
  if (count > 0) fn(0, count);
}

#else

ThreadPool::ThreadPool(int threads)
    : threads_(threads), impl_(threads > 1 ? std::make_unique<Impl>(threads) : nullptr) {}

void ThreadPool::parallel_for(std::int64_t count, std::int64_t grain,
                              const std::function<void(std::int64_t, std::int64_t)>& fn) const {
  if (count <= 0) return;
  if (impl_ == nullptr || count <= grain) {
    fn(0, count);
    return;
  }
  char start = 0;
  char finish = 0;
  DENDRITE_TSAN_RELEASE(&start);
  impl_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, count, static_cast<std::size_t>(grain)),
        [&](const tbb::blocked_range<std::int64_t>& range) {
          DENDRITE_TSAN_ACQUIRE(&start);
          fn(range.begin(), range.end());
          DENDRITE_TSAN_RELEASE(&finish);
        },
        tbb::static_partitioner{});
  });
  DENDRITE_TSAN_ACQUIRE(&finish);
}

#endif

ThreadPool::~ThreadPool() = default;

}  // namespace dendrite
