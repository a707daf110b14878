#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dendrite/types.h"
#include "model/info.h"
#include "model/rope.h"

namespace dendrite {

class Checkpoint;

/// A block drafter (DFlash, arXiv 2602.06036), as z-lab's checkpoints describe one. Its sizes, RoPE
/// and norms are its own; width and vocabulary are those of the model that it was trained for.
struct DrafterConfig {
  std::int64_t dim = 0;
  std::int64_t ffn_dim = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab = 0;
  std::int64_t block_size = 0;  // the last token and the masks after it; >= 2
  Token mask_token = 0;
  /// Layers of the model, ascending: the residual stream after each is what the drafter reads.
  std::vector<std::int64_t> taps;
  /// Which keys a layer's row sees: those of positions before its own and its own, and unless it is
  /// causal the block's other ones; with a window (> 0) those that are less than that away.
  struct Attention {
    std::int64_t window = 0;
    bool causal = false;
    bool operator==(const Attention&) const = default;
  };
  std::vector<Attention> attention;  // [layers]
  RopeConfig rope;
  float norm_eps = 0;
};

/// Reads config.json. Throws Error naming file and key: what does not fit the model, and what is
/// not supported (successors of DFlash, sliding layers that see what comes after, sinks, biases).
DrafterConfig load_drafter_config(const Checkpoint& checkpoint, const ModelInfo& target);
/// The same from a text; `file` only names it in messages.
DrafterConfig parse_drafter_config(std::string_view json, const std::string& file,
                                   const ModelInfo& target);

}  // namespace dendrite
