#include "machine.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "probes.h"

namespace dendrite::bench {
namespace {

constexpr std::int64_t kProbeMemory = std::int64_t{1} << 29;
constexpr std::int64_t kProbeRead = std::int64_t{1} << 26;  // of it, a call; the next call reads on

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

double now_seconds(Clock clock) {
  timespec time{};
  clock_gettime(clock == Clock::kCpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void ReadBandwidth::Free::operator()(std::byte* data) const {
  std::free(data);
}

ReadBandwidth::ReadBandwidth(int threads, Clock clock) : pool_(threads), clock_(clock) {
  auto* data = static_cast<std::byte*>(std::aligned_alloc(std::size_t{2} << 20, kProbeMemory));
  madvise(data, kProbeMemory, MADV_HUGEPAGE);
  std::memset(data, 1, kProbeMemory);
  memory_.reset(data);
}

double ReadBandwidth::gb_per_s() {
  offset_ = (offset_ + kProbeRead) % kProbeMemory;
  const std::int64_t threads = pool_.threads();
  const std::int64_t part = kProbeRead / threads / 512 * 512;
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(threads));
  const double begin = now_seconds(clock_);
  pool_.parallel_for(threads, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      sums[static_cast<std::size_t>(i)] = read_probe(memory_.get() + offset_ + i * part, part);
    }
  });
  const double seconds = now_seconds(clock_) - begin;
  for (const std::uint64_t sum : sums) sink_ += sum;
  asm volatile("" : : "r"(sink_));
  return static_cast<double>(part * threads) / seconds * 1e-9;
}

double ForeignLoad::cores() {
  std::ifstream file("/proc/stat");
  std::string cpu;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  if (!(file >> cpu >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal))
    return -1;
  const double machine =
      (user + nice + system + irq + softirq) / static_cast<double>(sysconf(_SC_CLK_TCK));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double own = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  const double wall = now_seconds();
  const double cores = (machine - machine_ - (own - own_)) / (wall - wall_);
  machine_ = machine;
  own_ = own;
  wall_ = wall;
  return cores < 0 ? 0 : cores;  // the machine's counters move in ticks
}

bool wait_for_quiet(double cores, double seconds) {
  const double end = now_seconds() + seconds;
  do {
    ForeignLoad load;
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    if (load.cores() < cores) return true;
  } while (now_seconds() < end);
  return false;
}

std::int64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

}  // namespace dendrite::bench
