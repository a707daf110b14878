#pragma once

#include "backend/cuda/base/device.h"
#include "backend/cuda/base/passes.h"

namespace dendrite::cuda {

/// Memory that lies between kernels of an op and is used again by the next. It only grows.
class Scratch {
 public:
  Scratch(const Device& device, Passes& passes) : device_(device), passes_(passes) {}

  /// Makes room. Where that moves it, waits for the device and forgets recordings, whose launches
  /// have the old place.
  void grow(std::int64_t size_bytes) {
    if (memory_.size_bytes() >= size_bytes) return;
    device_.synchronize("scratch memory");
    passes_.forget();
    memory_ = Memory(size_bytes + size_bytes / 2, "activations");
  }
  std::byte* data() const { return memory_.data(); }
  float* floats() const { return reinterpret_cast<float*>(memory_.data()); }
  std::int64_t size_bytes() const { return memory_.size_bytes(); }

 private:
  const Device& device_;
  Passes& passes_;
  Memory memory_;
};

}  // namespace dendrite::cuda
