#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/memory.h"
#include "backend/ops.h"
#include "core/parallel.h"

namespace dendrite::cpu {

/// Lays Backend::short_conv over threads: by channels. A thread goes over all runs in order, so it
/// alone wrote what it reads of runs before.
class ShortConvs {
 public:
  ShortConvs(const Kernels& kernels, const ThreadPool& pool) : kernels_(kernels), pool_(pool) {}
  void run(const ShortConv& args);

 private:
  const Kernels& kernels_;
  const ThreadPool& pool_;
  Memory scratch_;  // of each thread
  Memory zeros_;
};

}  // namespace dendrite::cpu
