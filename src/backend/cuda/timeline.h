#pragma once

#include <cuda_runtime.h>

#include "backend/backend.h"
#include "backend/cuda/device.h"

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
  /// After the stream was waited for.
  void collect();

 private:
  const Device& device_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  cudaEvent_t last_end_ = nullptr;
  bool running_ = false;
  bool in_step_ = false;
  bool has_last_ = false;
  DeviceTime time_;
};

}  // namespace dendrite::cuda
