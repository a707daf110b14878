#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/base/scratch.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/experts/few_products.h"
#include "backend/cuda/experts/packed_experts.h"
#include "backend/numerics.h"
#include "backend/ops.h"

namespace dendrite::cuda {

/// Mixtures of experts. All that a pass decides, which experts rows take and how many rows each
/// has, stays on the device, so that a pass can be recorded.
class Mixtures {
 public:
  Mixtures(Device& device, Passes& passes)
      : device_(device),
        lists_(device, passes),
        weighed_(device, passes),
        act_(device, passes),
        down_(device, passes) {
    prepare_few_products(device);
  }

  /// A matrix of an expert: packed where its rows are whole tiles in a layout that there is (of
  /// gate_up the gates are, too), else widened. See Backend::pack.
  static std::unique_ptr<Weight> pack(const Device& device, std::span<const StoredMatrix> parts,
                                      const Numerics& numerics);
  /// The experts of a layer, whose list stays where it is. Their matrices may be of bf16 or packed,
  /// each in a layout of its own; products of each kind that there is are a launch more. Throws
  /// Error naming what is not computed here: other weights, or too many experts.
  void add(std::span<const Expert> experts);
  /// Backend::experts with x as bf16 rows; the list of experts was added.
  void run(const Experts& args, const Rows& x);

 private:
  struct Layer {
    Memory matrices;  // DeviceExpert [experts]
    // DeviceMatrix::kind is a place in these; null: bf16
    std::vector<const packed::ExpertKernels*> gate_ups;
    std::vector<const packed::ExpertKernels*> downs;
    std::int64_t widest = 0;
    std::int64_t act_ld = 0;
  };

  void launch_products(const Layer& layer, const ExpertsArguments& args, bool has_no_gates);

  Device& device_;
  Scratch lists_;
  Scratch weighed_;
  Scratch act_;
  Scratch down_;
  std::map<const Expert*, Layer> layers_;
};

}  // namespace dendrite::cuda
