#include "backend/cuda/stores/move_clock.h"

namespace dendrite::cuda {
namespace {

constexpr const char* kOp = "timing moves";

}  // namespace

MoveClock::~MoveClock() {
  const DeviceScope here = device_.last_scope();
  for (const Move& move : moves_) {
    if (move.begin != nullptr) cudaEventDestroy(move.begin);
    if (move.end != nullptr) cudaEventDestroy(move.end);
  }
}

void MoveClock::begin() {
  if (next_ - oldest_ == kMoves) take_oldest();
  Move& now = move(next_);
  if (now.begin == nullptr) check(cudaEventCreate(&now.begin), kOp);
  if (now.end == nullptr) check(cudaEventCreate(&now.end), kOp);
  check(cudaEventRecord(now.begin, device_.stream()), kOp);
}

void MoveClock::end(std::int64_t bytes) {
  Move& now = move(next_);
  check(cudaEventRecord(now.end, device_.stream()), kOp);
  now.bytes = bytes;
  ++next_;
}

void MoveClock::take_oldest() {
  const Move& done = move(oldest_++);
  check(cudaEventSynchronize(done.end), kOp);
  float ms = 0;
  check(cudaEventElapsedTime(&ms, done.begin, done.end), kOp);
  totals_.bytes += done.bytes;
  totals_.seconds += static_cast<double>(ms) / 1e3;
}

MoveTotals MoveClock::totals() {
  while (oldest_ < next_) {
    const cudaError_t state = cudaEventQuery(move(oldest_).end);
    if (state == cudaErrorNotReady) {
      (void)cudaGetLastError();  // else the next launch seems to have failed
      break;
    }
    check(state, kOp);
    take_oldest();
  }
  return totals_;
}

}  // namespace dendrite::cuda
