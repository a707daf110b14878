#pragma once

#include "backend/cuda/tree_arguments.h"

namespace dendrite::cuda {

// The attention kernel for compute capability 9.0, which takes plans of pairs. Same bits as the
// other one.

/// Once.
void prepare_tree_attention_sm90();
void launch_tree_attention_sm90(const TreeAttentionArguments& args, std::int64_t multiprocessors,
                                cudaStream_t stream);

}  // namespace dendrite::cuda
