#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/parallel.h"

namespace dendrite::bench {

/// What a bench reads time from. kCpu counts the calling thread's work alone, so that other
/// processes disturb less; it means something only where one thread does all of it.
enum class Clock : std::uint8_t { kWall, kCpu };

double now_seconds(Clock clock = Clock::kWall);

/// Sequential reads over memory that no cache holds: the most a memory-bound step can have. Call it
/// right before and after what is measured; on shared machines it moves.
class ReadBandwidth {
 public:
  ReadBandwidth(int threads, Clock clock);
  double gb_per_s();

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  ThreadPool pool_;
  Clock clock_;
  std::unique_ptr<std::byte, Free> memory_;
  std::int64_t offset_ = 0;
  std::uint64_t sink_ = 0;
};

/// Cores that other processes kept busy since construction or the last call. -1: not known here.
class ForeignLoad {
 public:
  ForeignLoad() { cores(); }
  double cores();

 private:
  double wall_ = 0;
  double machine_ = 0;
  double own_ = 0;
};

/// Waits until others use less than `cores`, at most `seconds`. False: they still do.
bool wait_for_quiet(double cores, double seconds);

/// Heap bytes in use by this process, as the allocator counts them.
std::int64_t heap_bytes();

}  // namespace dendrite::bench
