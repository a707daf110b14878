#pragma once

#include <cstdint>

#include "backend/cuda/attention/tree_plan.h"
#include "backend/cuda/stores/kv_store.h"
#include "backend/tensor.h"

// What the kernels of tree attention are given.
namespace dendrite::cuda {

/// TreePlan on the device. Contents may change between replays of a captured launch; pointers and
/// `max_rows` may not.
struct TreePlanView {
  const TreePlan::Counts* counts = nullptr;
  const TreeTile* tiles = nullptr;
  const TreeBlock* blocks = nullptr;
  const std::int32_t* row_parts = nullptr;
  const TreePart* parts = nullptr;
  const std::int64_t* positions = nullptr;  // of the AttentionPlan
  const std::int32_t* pages = nullptr;      // of the AttentionPlan
  /// No token before this position is stored while kernels run that attention need not wait for.
  const std::int32_t* first_new = nullptr;
  std::int64_t max_rows = 0;  // at least counts->rows
  AttentionWindow window;
};

struct TreeAttentionArguments {
  Tensor out;                // f32, unless out_bf16 is given
  void* out_bf16 = nullptr;  // rows of out_bf16_ld values, overwritten instead of `out`
  std::int64_t out_bf16_ld = 0;
  Tensor q;
  std::int64_t heads = 0;
  HeadSlices slices;             // TreePlan::Shape, of a KV head
  float scale_log2e = 1;         // of the scores, capped ones, too, times log2(e)
  float cap_factor = 0;          // scores become tanh(cap_factor * q . k) first; 0: they do not
  const float* sinks = nullptr;  // AttentionArgs::sinks
  KvView kv;
  TreePlanView plan;
  float* states = nullptr;  // [slots][heads][head_dim], then [slots][heads][2]
  std::int64_t slots = 0;   // that `states` has room for
  float* groups = nullptr;  // TreeAttention::group_floats()
};

}  // namespace dendrite::cuda
