#pragma once

#include "backend/cuda/attention/tree_arguments.h"

namespace dendrite::cuda {

/// args.slices.heads query heads from `first_head` on, all of one KV head.
struct Slice {
  int kv_head = 0;
  int first_head = 0;
};

/// Of all KV heads: a tile is worked on once for each.
__device__ inline int slice_count(const TreeAttentionArguments& args) {
  return static_cast<int>(args.kv.kv_heads) * static_cast<int>(args.slices.count);
}

/// See HeadSlices: the last one of a KV head ends where its heads do.
__device__ inline Slice slice_of(const TreeAttentionArguments& args, int index) {
  const auto count = static_cast<int>(args.slices.count);
  const auto heads = static_cast<int>(args.slices.heads);
  const int group = static_cast<int>(args.heads) / static_cast<int>(args.kv.kv_heads);
  const int kv_head = index / count;
  return {kv_head, kv_head * group + min(index % count * heads, group - heads)};
}

}  // namespace dendrite::cuda
