#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/memory.h"
#include "backend/ops.h"
#include "core/parallel.h"

namespace dendrite::cpu {

/// Lays Backend::mamba over threads: the convolution by channels, then states by heads, then norms
/// by rows. A thread goes over all runs in order. Of what it reads of runs before, B was written
/// while the whole pass was convolved, and all else by itself.
class Mambas {
 public:
  Mambas(const Kernels& kernels, const ThreadPool& pool) : kernels_(kernels), pool_(pool) {}
  void run(const Mamba& args);

 private:
  void convolve(const Mamba& args, const MambaTask& task);
  /// Calls `kernel` over [0, count), with so many floats of scratch each time.
  template <class Kernel>
  void spread(std::int64_t count, bool serial, std::int64_t floats, const Kernel& kernel);

  const Kernels& kernels_;
  const ThreadPool& pool_;
  Memory scratch_;    // of each thread
  Memory convolved_;  // [rows, channels()]
  Memory zeros_;
};

}  // namespace dendrite::cpu
