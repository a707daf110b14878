#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/memory.h"
#include "backend/ops.h"
#include "core/parallel.h"

namespace dendrite::cpu {

/// Lays Backend::delta_net over threads: by key head, with the value heads that go by it. A thread
/// goes over all runs in order, so it alone wrote what it reads of runs before.
class DeltaNets {
 public:
  DeltaNets(const Kernels& kernels, const ThreadPool& pool) : kernels_(kernels), pool_(pool) {}
  void run(const DeltaNet& args);

 private:
  const Kernels& kernels_;
  const ThreadPool& pool_;
  Memory scratch_;  // of each thread
  Memory zeros_;
};

}  // namespace dendrite::cpu
