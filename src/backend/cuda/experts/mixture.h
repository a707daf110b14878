#pragma once

#include <map>
#include <vector>

#include "backend/cuda/base/scratch.h"
#include "backend/cuda/experts/experts.h"
#include "backend/ops.h"

namespace dendrite::cuda {

/// Mixtures of experts. All that a pass decides, which experts rows take and how many rows each
/// has, stays on the device, so that a pass can be recorded.
class Mixtures {
 public:
  Mixtures(Device& device, Passes& passes)
      : device_(device), lists_(device, passes), act_(device, passes), down_(device, passes) {}

  /// The experts of a layer, whose list stays where it is. Throws Error naming what is not computed
  /// here: packed weights, or too many experts.
  void add(std::span<const Expert> experts);
  /// Backend::experts with x as bf16 rows; the list of experts was added.
  void run(const Experts& args, const Rows& x);

 private:
  struct Layer {
    Memory matrices;  // DeviceExpert [experts]
    std::int64_t widest = 0;
    std::int64_t act_ld = 0;
  };

  Device& device_;
  Scratch lists_;
  Scratch act_;
  Scratch down_;
  std::map<const Expert*, Layer> layers_;
};

}  // namespace dendrite::cuda
