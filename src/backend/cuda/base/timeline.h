#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/base/device.h"
#include "backend/device_info.h"

namespace dendrite::cuda {

/// Times the stream from a pass's first kernel to its draws' last, and from there to the next pass:
/// what the device does, and how long it waits for the host. Costs nothing until started.
class Timeline {
 public:
  explicit Timeline(const Device& device) : device_(device) {}
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  void start();
  DeviceTime time() const { return time_; }

  void pass_begins();
  void draws_end();
  /// After the first draws that were not collected are known to be done.
  void collect();
  /// What was not collected never will be.
  void forget();

 private:
  /// A step's events. Two steps may be under way, and the end of one before is needed as well.
  struct Step {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
  };
  static constexpr std::size_t kSteps = 4;

  Step& step(std::size_t number) { return steps_[number % kSteps]; }

  const Device& device_;
  Step steps_[kSteps];
  bool running_ = false;
  bool in_step_ = false;  // step `next_` has begun and not ended
  bool has_last_ = false;
  std::size_t last_ = 0;    // collected last, if any
  std::size_t oldest_ = 0;  // ended and not collected: [oldest_, next_)
  std::size_t next_ = 0;
  DeviceTime time_;
};

}  // namespace dendrite::cuda
