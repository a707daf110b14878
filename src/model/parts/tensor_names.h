#pragma once

#include <string>

namespace dendrite {

/// How tensors of attention are called behind a layer's prefix and `block`, less ".weight".
struct AttentionNames {
  std::string q_norm = "q_norm";
  std::string k_norm = "k_norm";
  std::string out = "o_proj";
  std::string block = "self_attn.";
};

/// How those of an MLP are called behind a layer's prefix and `block`, less ".weight".
struct MlpNames {
  std::string block = "mlp.";
  std::string gate = "gate_proj";
  std::string up = "up_proj";
  std::string down = "down_proj";
  std::string fused = "gate_up_proj";  // gates and ups, where they are one tensor
};

}  // namespace dendrite
