#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention_simt.h"
#include "backend/cuda/attention/tree_attention.h"
#include "backend/cuda/attention/tree_plans.h"
#include "backend/cuda/base/pass_arrays.h"
#include "backend/cuda/base/passes.h"
#include "backend/cuda/base/scratch.h"
#include "backend/cuda/base/staging.h"
#include "backend/ops.h"
#include "backend/pass.h"

namespace dendrite::cuda {

/// Backend::attention by kernels for tensor cores, or by those for ordinary cores: plans, their
/// arrays on the device and memory for partial results.
class Attention {
 public:
  Attention(Device& device, Staging& staging, Passes& passes)
      : device_(device), staging_(staging), states_(device, passes) {}

  /// A pass, while it lives: plans are made once.
  class Pass {
   public:
    Pass(Attention& attention, const PassInputs& inputs);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

   private:
    Attention& attention_;
  };

  /// Of a pass that is recorded: declares what run_on_tensor_cores() stages, and makes room.
  void declare(const PassInputs& inputs, PassArrays& arrays);
  /// Requires fits_tree_attention.
  void run_on_tensor_cores(const AttentionArgs& args);
  /// To `out` instead of args.out, in f32. Its pass can't be recorded.
  void run_plain(const AttentionArgs& args, Tensor out);

 private:
  /// `to`: Staging or PassArrays.
  template <typename Stage>
  static TreePlanView stage(Stage& to, const TreePlan& tree, const AttentionPlan& plan);
  template <typename Stage>
  const std::int32_t* stage_first_new(Stage& to) const;

  Device& device_;
  Staging& staging_;
  TreeAttention tree_attention_;
  TreePlans plans_;
  std::int32_t first_new_ = 0;  // TreePlanView::first_new of the pass; 0 outside of passes
  Scratch states_;
};

/// Throws Error naming the shape if a launch of attention failed.
void check_attention_launch(const AttentionArgs& args);

}  // namespace dendrite::cuda
