#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/attention/tree_arguments.h"
#include "backend/rows.h"

namespace dendrite::cuda {

/// Whether the tensor-core kernels take a model, computed in bf16: K and V in bf16 or FP8, head_dim
/// 64, 80, 96, 128, 192, 256, 320, 512 or 576, and so in layers of another size (KvShape::wide).
/// Any number of query heads a KV head.
bool fits_tree_attention(const KvShape& kv);
/// And whether they take these tensors: rows are aligned to 16 bytes.
bool fits_tree_attention(const Rows& out, Tensor q, const KvShape& kv);

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

  /// What plans for these heads have. Requires fits_tree_attention.
  TreePlan::Shape shape(std::int64_t heads, const KvShape& kv) const;
  /// Floats of TreeAttentionArguments::groups: what thread blocks have there where registers and
  /// shared memory have no room.
  std::int64_t group_floats(const KvShape& kv) const;

  /// Attention and merge: two launches whose grids depend on max_rows and heads alone, each with
  /// programmatic dependence on what was launched before where the hardware has that. Requires
  /// fits_tree_attention.
  void launch(const TreeAttentionArguments& args, cudaStream_t stream) const;

 private:
  /// Which kernels a head size and what pages hold have.
  enum class Kind : std::uint8_t { kTiles, kPairs, kWide };
  Kind kind(std::int64_t head_dim, KvFormat format) const;
  std::int64_t workers(Kind kind) const {
    return kind == Kind::kTiles ? 2 * multiprocessors_ : multiprocessors_;
  }

  std::int64_t multiprocessors_ = 0;
  int shared_bytes_ = 0;  // that a thread block may have
  bool warpgroups_ = false;
};

/// Asks for the same division of cache and shared memory as the attention kernel has, so that the
/// two may share a multiprocessor. Once.
void prepare_tree_merge();
/// Folds partial results of each row and head and writes the output. As TreeAttention::launch does.
void launch_tree_merge(const TreeAttentionArguments& args, cudaStream_t stream);

}  // namespace dendrite::cuda
