#include "backend/cuda/pass_bytes.h"

#include "backend/attention_plan.h"
#include "backend/cuda/attention/attention_simt.h"
#include "backend/cuda/attention/tree_plan.h"
#include "backend/cuda/padded_inputs.h"
#include "backend/cuda/products/few_rows_check.h"

namespace dendrite::cuda {

// The parts that grow with the model, then what the driver takes for itself.
std::int64_t pass_bytes(const PassSizes& sizes, bool tensor_cores) {
  // Partial results of a row: one a super-block, or those of tree_plan.h.
  std::int64_t super_blocks = 0;
  for (std::int64_t at = 0; at < sizes.positions; at = super_block_end(at)) ++super_blocks;
  if (tensor_cores) {  // a group each, and the runs of the last one
    super_blocks = sizes.positions / kGroupTokens + kGroupTokens / kRunTokens;
  }
  const std::int64_t states =
      4 * attention_state_floats(super_blocks, sizes.max_rows, sizes.heads, sizes.head_dim);
  const std::int64_t check = FewRowsCheck::most_bytes(sizes.tallest, sizes.widest);
  // Recordings: a dozen kernels a layer, for every pair of padded sizes. What a kernel takes in a
  // graph is no more than this: its arguments, at most 4 KB, and what surrounds them.
  constexpr std::int64_t kKernelBytes = 8 << 10;
  constexpr auto kSizes = static_cast<std::int64_t>(kPaddedSizes.size());
  const std::int64_t graphs = kSizes * (kSizes + 1) / 2 * 12 * (sizes.layers + 1) * kKernelBytes;
  const std::int64_t kept_logits = 64 * sizes.vocab * 4;  // Readout::kept_tensor
  // Kernels are loaded when they are first launched, cuBLASLt's too; arrays of passes.
  constexpr std::int64_t kDriverBytes = std::int64_t{384} << 20;
  // What lies between kernels of a recurrent layer, no more than that; scratch grows by half as
  // much.
  const std::int64_t recurrent = sizes.max_rows * sizes.recurrent * 4;
  const std::int64_t angles = sizes.positions * sizes.head_dim * 4;  // of moves, once they are used
  return angles + states + states / 2 + recurrent + recurrent / 2 + check + graphs + kept_logits +
         kDriverBytes;
}

}  // namespace dendrite::cuda
