#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/tree_arguments.h"

namespace dendrite::cuda {

/// Whether the tensor-core kernels take this: bf16 K and V, head_dim 64 or 128, up to kTileRows
/// query heads a KV head, rows of q and out aligned to 16 bytes.
bool fits_tree_attention(Tensor out, Tensor q, std::int64_t heads, const KvView& kv);
/// The part of it that is the model's: all but the alignment.
bool fits_tree_attention(std::int64_t heads, const KvView& kv);

/// Floats of partial results.
constexpr std::int64_t tree_state_floats(std::int64_t slots, std::int64_t heads,
                                         std::int64_t head_dim) {
  return slots * heads * (head_dim + 2);
}

/// Launches the attention of one GPU; made once.
class TreeAttention {
 public:
  /// Reads what the current device offers.
  TreeAttention();

  /// For TreePlan::Shape.
  std::int64_t workers() const { return pairs_ ? multiprocessors_ : 2 * multiprocessors_; }
  bool pairs() const { return pairs_; }

  /// Attention and merge: two launches whose grids depend on max_rows and heads alone, each with
  /// programmatic dependence on what was launched before where the hardware has that. Requires
  /// fits_tree_attention.
  void launch(const TreeAttentionArguments& args, cudaStream_t stream) const;

 private:
  std::int64_t multiprocessors_ = 0;
  bool pairs_ = false;  // the kernel for compute capability 9.0
  int stages_ = 4;      // chunks of K and V in shared memory at head_dim 128
};

/// Asks for the same division of cache and shared memory as the attention kernel has, so that the
/// two may share a multiprocessor. Once.
void prepare_tree_merge();
/// Folds partial results of each row and head and writes the output. As TreeAttention::launch does.
void launch_tree_merge(const TreeAttentionArguments& args, cudaStream_t stream);

}  // namespace dendrite::cuda
