#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/base/device.h"
#include "backend/pass.h"

namespace dendrite::cuda {

/// Times the stream from the beginning to the end of what moves K and V. The host waits for a time
/// only where it is kMoves moves ahead of the device.
class MoveClock {
 public:
  explicit MoveClock(const Device& device) : device_(device) {}
  ~MoveClock();
  MoveClock(const MoveClock&) = delete;
  MoveClock& operator=(const MoveClock&) = delete;

  void begin();
  void end(std::int64_t bytes);
  /// Of all that the device has done.
  MoveTotals totals();

 private:
  struct Move {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    std::int64_t bytes = 0;
  };
  static constexpr std::size_t kMoves = 4;

  Move& move(std::size_t number) { return moves_[number % kMoves]; }
  void take_oldest();

  const Device& device_;
  Move moves_[kMoves];
  std::size_t oldest_ = 0;  // not taken: [oldest_, next_)
  std::size_t next_ = 0;
  MoveTotals totals_;
};

}  // namespace dendrite::cuda
