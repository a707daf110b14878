#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/memory.h"
#include "backend/ops.h"
#include "core/parallel.h"

namespace dendrite::cpu {

/// Cuts a plan into tasks and runs them: owns the partial states and the threads' scratch.
class Attention {
 public:
  Attention(const Kernels& kernels, const ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  /// `format` is kF32 or kBF16 by the store's format, or kDotBF16.
  void run(const AttentionArgs& args, StepFormat format);

 private:
  struct Job;
  void run_rows(const Job& job, std::int64_t row_begin, std::int64_t row_end);

  const Kernels& kernels_;
  const ThreadPool& pool_;
  Memory states_;
  Memory scratch_;
};

}  // namespace dendrite::cpu
