#include "backend/cuda/attention/attention.h"

#include <algorithm>
#include <span>
#include <vector>

#include "backend/cuda/attention/log2e.h"

namespace dendrite::cuda {
namespace {

KvView view(const AttentionArgs& args) {
  return static_cast<const CudaKvStore&>(*args.kv).view(args.layer);
}

}  // namespace

void check_attention_launch(const AttentionArgs& args) {
  check_launch("attention", {{"rows", args.q.rows},
                             {"heads", args.heads},
                             {"kv_heads", args.kv->shape().kv_heads},
                             {"head_dim", args.kv->shape().head_dim}});
}

Attention::Pass::Pass(Attention& attention, const PassInputs& inputs) : attention_(attention) {
  attention_.plans_.begin_pass();
  attention_.first_new_ = static_cast<std::int32_t>(inputs.first_position);
}

Attention::Pass::~Pass() {
  attention_.plans_.end_pass();
  attention_.first_new_ = 0;
}

template <typename Stage>
TreePlanView Attention::stage(Stage& to, const TreePlan& tree, const AttentionPlan& plan) {
  const auto stage = [&to]<typename T>(const std::vector<T>& values) {
    return to.stage(std::span<const T>(values));
  };
  TreePlanView view;
  view.counts = stage(tree.counts());
  view.tiles = stage(tree.tiles());
  view.blocks = stage(tree.blocks());
  view.row_parts = stage(tree.row_parts());
  view.parts = stage(tree.parts());
  view.positions = stage(plan.positions);
  view.pages = stage(plan.pages);
  return view;
}

/// Apart, since the plans of a pass have it in common.
template <typename Stage>
const std::int32_t* Attention::stage_first_new(Stage& to) const {
  return to.stage(std::span<const std::int32_t>(&first_new_, 1));
}

void Attention::declare(const PassInputs& inputs, PassArrays& arrays) {
  stage_first_new(arrays);
  for (const AttentionPlan& plan : inputs.plans) {
    const KvShape& kv = inputs.kv_of(plan).shape();
    const TreePlan& tree = plans_.of(plan, tree_attention_.shape(inputs.heads, kv));
    stage(arrays, tree, plan);
    states_.grow(4 * (tree_attention_.group_floats(kv) +
                      tree_state_floats(tree.slots(), inputs.heads, kv.head_dim)));
  }
}

void Attention::run_on_tensor_cores(const AttentionArgs& args) {
  const AttentionPlan& plan = *args.plan;
  if (plan.positions.empty()) return;
  const KvShape& kv = args.kv->shape();
  const TreePlan::Shape shape = tree_attention_.shape(args.heads, kv);
  const TreePlan& tree = plans_.of(plan, shape);
  TreeAttentionArguments attention;
  attention.q = args.q;
  attention.heads = args.heads;
  attention.scale_log2e = (args.soft_cap > 0 ? args.soft_cap : args.scale) * kLog2E;
  attention.cap_factor = args.soft_cap > 0 ? args.scale / args.soft_cap : 0.0f;
  attention.sinks = args.sinks;
  attention.kv = view(args);
  attention.slices = {shape.slice_heads, shape.slices / kv.kv_heads};
  attention.plan = stage(staging_, tree, plan);
  attention.plan.first_new = stage_first_new(staging_);
  attention.plan.max_rows = args.q.rows;
  attention.plan.window = plan.window;
  if (args.out.format == RowFormat::kBF16) {
    attention.out_bf16 = args.out.data;
    attention.out_bf16_ld = args.out.ld;
  } else {
    attention.out = args.out.tensor();
  }
  const std::int64_t groups = tree_attention_.group_floats(kv);
  states_.grow(4 * (groups + tree_state_floats(tree.slots(), args.heads, kv.head_dim)));
  // All that there is room for, so that a recorded launch serves plans with more.
  attention.slots =
      (states_.size_bytes() / 4 - groups) / tree_state_floats(1, args.heads, kv.head_dim);
  attention.groups = states_.floats();
  attention.states = states_.floats() + groups;
  tree_attention_.launch(attention, device_.stream());
  check_attention_launch(args);
}

void Attention::run_plain(const AttentionArgs& args, Tensor out) {
  const AttentionPlan& plan = *args.plan;
  AttentionArguments attention;
  attention.plan.rows = static_cast<std::int64_t>(plan.positions.size());
  attention.plan.super_block_count = static_cast<std::int64_t>(plan.super_blocks.size());
  if (attention.plan.rows == 0) return;
  attention.plan.positions = staging_.stage(std::span<const std::int64_t>(plan.positions));
  attention.plan.items = staging_.stage(std::span<const AttentionItem>(plan.items));
  attention.plan.super_blocks =
      staging_.stage(std::span<const AttentionPlan::SuperBlock>(plan.super_blocks));
  attention.plan.pages = staging_.stage(std::span<const std::int32_t>(plan.pages));
  attention.plan.window = plan.window;
  attention.out = out;
  attention.q = args.q;
  attention.heads = args.heads;
  attention.cap = args.soft_cap;
  attention.cap_factor = args.soft_cap > 0 ? args.scale / args.soft_cap : 0.0f;
  attention.scale_log2e = (args.soft_cap > 0 ? 1.0f : args.scale) * kLog2E;
  attention.sinks = args.sinks;
  attention.kv = view(args);
  states_.grow(4 * attention_state_floats(attention.plan.super_block_count, attention.plan.rows,
                                          args.heads, attention.kv.head_dim));
  attention.states = states_.floats();
  launch_attention(attention, device_.stream());
  check_attention_launch(args);
}

}  // namespace dendrite::cuda
