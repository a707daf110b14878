#include "model/splitting.h"

#include <string>

#include "dendrite/error.h"

namespace dendrite {
namespace {

/// What has no share; "": there is nothing.
std::string why_not(const DecoderConfig& c, int ranks) {
  if (c.recurrent_layers() > 0) return "recurrent layers";
  if (c.latent) return "attention through a latent";
  if (c.experts) return "mixtures of experts";
  if (c.layer_inputs) return "inputs of single layers";
  if (c.wide) return "layers of two sizes of heads";
  if (c.attention_gate || c.attention_head_gate) return "gates of what is attended";
  if (c.qk_norm && c.qk_norm_whole) return "norms of all heads together";
  const auto uneven = [&](std::int64_t count, const char* of) {
    return count % ranks == 0 ? "" : std::string(of) + " (" + std::to_string(count) + ")";
  };
  std::string why = uneven(c.heads, "heads");
  if (why.empty()) why = uneven(c.kv_heads, "heads of keys and values");
  if (why.empty()) why = uneven(c.ffn_dim, "feed-forward values");
  if (why.empty()) why = uneven(c.shared_kv_ffn_dim, "feed-forward values");
  return why;
}

}  // namespace

void check_split(const DecoderConfig& config, int ranks) {
  if (ranks == 1) return;
  const std::string why = why_not(config, ranks);
  if (why.empty()) return;
  throw Error("the model has " + why + ", which " + std::to_string(ranks) +
              " devices do not share; expected one device for it, or another number of them");
}

}  // namespace dendrite
