#include "io/gguf_names.h"

#include <algorithm>
#include <iterator>

namespace dendrite {
namespace {

struct Name {
  std::string_view gguf;
  std::string_view here;
};

constexpr Name kWhole[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                           {"output_norm.weight", "model.norm.weight"},
                           {"output.weight", "lm_head.weight"},
                           {"rope_freqs.weight", "rope_freqs.weight"}};

/// Of a layer, less what stands behind the last dot.
constexpr Name kParts[] = {{"attn_norm", "input_layernorm"},
                           {"attn_q", "self_attn.q_proj"},
                           {"attn_k", "self_attn.k_proj"},
                           {"attn_v", "self_attn.v_proj"},
                           {"attn_output", "self_attn.o_proj"},
                           {"attn_q_norm", "self_attn.q_norm"},
                           {"attn_k_norm", "self_attn.k_norm"},
                           {"ffn_norm", "post_attention_layernorm"},
                           {"ffn_gate", "mlp.gate_proj"},
                           {"ffn_up", "mlp.up_proj"},
                           {"ffn_down", "mlp.down_proj"},
                           {"ffn_gate_inp", "mlp.gate"},
                           // Of all experts of a layer.
                           {"ffn_gate_exps", "mlp.experts.gate_proj"},
                           {"ffn_up_exps", "mlp.experts.up_proj"},
                           {"ffn_down_exps", "mlp.experts.down_proj"}};

constexpr std::string_view kLayer = "blk.";

}  // namespace

std::optional<std::string> tensor_name_of(std::string_view gguf_name) {
  const auto* const whole = std::ranges::find(kWhole, gguf_name, &Name::gguf);
  if (whole != std::end(kWhole)) return std::string(whole->here);
  if (!gguf_name.starts_with(kLayer)) return std::nullopt;
  const std::string_view rest = gguf_name.substr(kLayer.size());
  const auto dot = rest.find('.');
  const auto last = rest.rfind('.');
  if (dot == std::string_view::npos || last == dot) return std::nullopt;
  const std::string_view layer = rest.substr(0, dot);
  const bool is_number = !layer.empty() && layer.size() <= 4 &&
                         std::ranges::all_of(layer, [](char c) { return c >= '0' && c <= '9'; }) &&
                         (layer == "0" || layer.front() != '0');
  const auto* const part =
      std::ranges::find(kParts, rest.substr(dot + 1, last - dot - 1), &Name::gguf);
  const std::string_view kind = rest.substr(last + 1);
  const bool known = kind == "weight" || kind == "bias" || kind == "scale";
  if (!is_number || part == std::end(kParts) || !known) return std::nullopt;
  return "model.layers." + std::string(layer) + "." + std::string(part->here) + "." +
         std::string(kind);
}

bool says_nothing(std::string_view gguf_name) {
  return gguf_name.ends_with(".attn_rot_embd") || gguf_name.ends_with(".rope_freqs") ||
         gguf_name.ends_with(".input_scale");
}

}  // namespace dendrite
