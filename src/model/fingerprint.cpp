#include "model/fingerprint.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "core/hash.h"
#include "io/model_folder.h"

namespace dendrite {
namespace {

constexpr std::int64_t kSamples = 4;
constexpr std::int64_t kSampleBytes = 256;

std::string text_of(const DecoderConfig& c) {
  std::ostringstream out;
  out << std::hexfloat;  // exact
  const char* const separator = ";";
  const auto add = [&](auto value) { out << value << separator; };
  add(c.model_type);
  for (const std::int64_t size :
       {c.dim, c.ffn_dim, c.layers, c.heads, c.kv_heads, c.head_dim, c.rotary_dim, c.vocab}) {
    add(size);
  }
  add(c.norm_eps);
  for (const bool flag : {c.tie_embeddings, c.attention_bias, c.attention_out_bias, c.mlp_bias,
                          c.qk_norm, c.max_positions_hard}) {
    add(flag);
  }
  for (const std::int64_t window : c.windows) add(window);
  const RopeConfig& rope = c.rope;
  add(name_of(rope.type));
  for (const double number : {rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor,
                              rope.attention_factor.value_or(0), rope.mscale, rope.mscale_all_dim,
                              rope.beta_fast, rope.beta_slow}) {
    add(number);
  }
  add(rope.attention_factor.has_value());
  add(rope.max_positions);
  add(rope.original_positions);
  add(rope.truncate);
  return out.str();
}

}  // namespace

std::uint64_t model_fingerprint(const DecoderConfig& config, const ModelFolder& folder,
                                bool dummy_weights) {
  const auto mix = [](std::uint64_t hash, std::string_view text) {
    return hash_bytes(std::as_bytes(std::span(text)), hash);
  };
  std::uint64_t hash = mix(0, text_of(config));
  if (dummy_weights) return mix(hash, "dummy");
  for (const std::string_view name : folder.names()) {
    const TensorInfo& tensor = *folder.find(name);
    hash = mix(mix(mix(hash, name), tensor.stored_type), shape_text(tensor.shape));
    const std::span bytes(tensor.data, static_cast<std::size_t>(tensor.size_bytes));
    const std::int64_t last = std::max<std::int64_t>(tensor.size_bytes - kSampleBytes, 0);
    for (std::int64_t i = 0; i < kSamples; ++i) {  // the first, the last, and some between
      const auto at = static_cast<std::size_t>(last / (kSamples - 1) * i +
                                               (i == kSamples - 1 ? last % (kSamples - 1) : 0));
      hash = hash_bytes(bytes.subspan(at, std::min<std::size_t>(kSampleBytes, bytes.size() - at)),
                        hash);
    }
  }
  return hash;
}

}  // namespace dendrite
