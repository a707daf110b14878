#pragma once

#include <vector>

#include "backend/cuda/base/scratch.h"
#include "backend/cuda/base/staging.h"
#include "backend/cuda/recurrence/delta_net.h"
#include "backend/ops.h"

namespace dendrite::cuda {

/// Recurrent layers: the plan of a pass, in the order in which a GPU may go over it, and their ops.
class Recurrence {
 public:
  Recurrence(Device& device, Staging& staging, Passes& passes)
      : device_(device), staging_(staging), values_(device, passes) {}

  /// A pass, while it lives: its plan is put in order once.
  class Pass {
   public:
    Pass(Recurrence& recurrence, const RecurrencePlan* plan) : recurrence_(recurrence) {
      if (plan != nullptr) recurrence_.level(*plan);
      recurrence_.of_pass_ = plan;
    }
    ~Pass() { recurrence_.of_pass_ = nullptr; }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Recurrence& recurrence_;
  };

  /// Throws Error naming sizes that the GPU's shared memory does not take.
  void delta_net(const DeltaNet& args);
  void gate(const Rows& out, const Tensor& x, const Tensor& gate);

 private:
  void level(const RecurrencePlan& plan);

  Device& device_;
  Staging& staging_;
  Scratch values_;
  std::vector<LeveledRun> runs_;  // of the last plan
  std::int32_t levels_ = 0;
  const RecurrencePlan* of_pass_ = nullptr;  // that `runs_` are of
};

}  // namespace dendrite::cuda
