#include "model/loader.h"

#include <cmath>
#include <sstream>
#include <string>

#include "core/hash.h"
#include "dendrite/error.h"
#include "io/checkpoint.h"
#include "model/config_reader.h"
#include "model/decoder.h"
#include "model/mtp_head.h"
#include "model/weights.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// Numbers and words, one after the other.
class Text {
 public:
  Text() { out_ << std::hexfloat; }  // exact
  template <class T>
  void add(const T& value) {
    out_ << value << ";";
  }
  std::string str() const { return out_.str(); }

 private:
  std::ostringstream out_;
};

void add_rope(Text& out, const RopeConfig& rope) {
  out.add(name_of(rope.type));
  for (const double number : {rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor,
                              rope.attention_factor.value_or(0), rope.mscale, rope.mscale_all_dim,
                              rope.beta_fast, rope.beta_slow}) {
    out.add(number);
  }
  out.add(rope.attention_factor.has_value());
  out.add(rope.max_positions);
  out.add(rope.original_positions);
  out.add(rope.truncate);
  for (const float factor : rope.factors) out.add(factor);
  if (rope.type == RopeType::kProportional) {
    out.add(rope.factor);
    out.add(rope.rotated_part);
  }
}

/// What only some families have, if this one does: others keep the text that they had without.
void add_rare(Text& out, const DecoderConfig& c) {
  const DecoderConfig plain;
  const auto add = [&](const char* what, const auto& value, const auto& usual) {
    if (value == usual) return;
    out.add(what);
    out.add(value);
  };
  add("whole", c.qk_norm_whole, plain.qk_norm_whole);
  add("plain", c.qk_norm_plain, plain.qk_norm_plain);
  add("pairs", c.rope_pairs, plain.rope_pairs);
  add("chunked", c.chunked, plain.chunked);
  add("before mixer", c.norms.before_mixer, plain.norms.before_mixer);
  add("behind mixer", c.norms.behind_mixer, plain.norms.behind_mixer);
  add("before ffn", c.norms.before_ffn, plain.norms.before_ffn);
  add("behind ffn", c.norms.behind_ffn, plain.norms.behind_ffn);
  add("activation", static_cast<int>(c.activation.kind), static_cast<int>(plain.activation.kind));
  add("scale", c.attention_scale, plain.attention_scale);
  add("cap", c.attention_soft_cap, plain.attention_soft_cap);
  add("sinks", c.attention_sinks, plain.attention_sinks);
  add("limit", c.expert_activation.limit, plain.expert_activation.limit);
  add("alpha", c.expert_activation.alpha, plain.expert_activation.alpha);
  add("residual", c.residual_scale, plain.residual_scale);
  add("embedding", c.embedding_scale, plain.embedding_scale);
  add("embedding rounds", c.embedding_scale_rounds, plain.embedding_scale_rounds);
  add("logits", c.logit_scale, plain.logit_scale);
  add("logit cap", c.logit_soft_cap, plain.logit_soft_cap);
  if (c.query_growth) {
    add("growth", c.query_growth->beta, 0.0);
    add("length", c.query_growth->length, std::int64_t{0});
    add("ahead", c.query_growth->ahead, std::int64_t{0});
    add("unrotated", c.query_growth->unrotated, false);
  }
  add("head gate", c.attention_head_gate, plain.attention_head_gate);
  if (c.experts) {
    add("sum bias", c.experts->routing.sum_bias, 0.0F);
    add("inputs", c.experts->routing.weighs_inputs, false);
  }
  if (c.short_conv) {
    add("taps", c.short_conv->taps, std::int64_t{0});
    add("conv bias", c.short_conv_bias, plain.short_conv_bias);
    for (std::int64_t i = 0; i < c.layers; ++i) out.add(c.is_recurrent(i));
  }
  if (c.mamba) {
    for (const std::int64_t size :
         {c.mamba->heads, c.mamba->head_dim, c.mamba->groups, c.mamba->state_dim, c.mamba->taps}) {
      out.add(size);
    }
    out.add(c.mamba->least_dt);
    out.add(c.mamba->most_dt);
    out.add(c.mamba->bias);
    out.add(c.mamba->conv_bias);
    for (std::int64_t i = 0; i < c.layers; ++i) out.add(c.is_recurrent(i));
  }
  for (const LayerParts parts : c.layer_parts) out.add(static_cast<int>(parts));
  add("squared relu", c.squared_relu, plain.squared_relu);
  if (c.local_rope) add_rope(out, *c.local_rope);
  for (const bool unrotated : c.unrotated) out.add(unrotated);
  add("values", c.value_norm, plain.value_norm);
  add("values of keys", c.wide_value_is_key, plain.wide_value_is_key);
  add("shared", c.shared_kv, plain.shared_kv);
  add("shared ffn", c.shared_kv_ffn_dim, plain.shared_kv_ffn_dim);
  add("scales", c.layer_scales, plain.layer_scales);
  add("beside", c.experts_beside, plain.experts_beside);
  if (c.wide) {
    add("wide heads", c.wide->kv_heads, std::int64_t{0});
    add("wide dim", c.wide->head_dim, std::int64_t{0});
  }
  if (c.layer_inputs) add("layer inputs", c.layer_inputs->dim, std::int64_t{0});
  if (c.latent) {
    for (const std::int64_t size : {c.latent->rank, c.latent->query_rank, c.latent->plain_dim,
                                    c.latent->rotary_dim, c.latent->value_dim}) {
      out.add(size);
    }
  }
}

/// All fields that K, V and logits depend on.
std::string text_of(const DecoderConfig& c) {
  Text out;
  const auto add = [&](const auto& value) { out.add(value); };
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
  add_rope(out, c.rope);
  if (c.delta_net) {
    const DeltaNetSizes& sizes = *c.delta_net;
    for (const std::int64_t size :
         {sizes.key_heads, sizes.value_heads, sizes.key_dim, sizes.value_dim, sizes.taps}) {
      add(size);
    }
    if (sizes.by_channel) add("by channel");
    for (std::int64_t i = 0; i < c.layers; ++i) add(c.is_recurrent(i));
    add(c.attention_gate);
    add(c.zero_centred_norms);
  }
  if (c.experts) {
    const ExpertsSizes& sizes = *c.experts;
    for (const std::int64_t size :
         {sizes.routing.experts, sizes.routing.chosen, sizes.ffn_dim, sizes.shared_ffn_dim}) {
      add(size);
    }
    add(sizes.routing.normalised);
    add(static_cast<int>(sizes.routing.shared));
    for (std::int64_t i = 0; i < c.layers; ++i) add(c.is_mixed(i));
    if (sizes.routing.score != RouterScore::kSoftmax) {
      add(sizes.routing.scale);
      add(sizes.routing.groups);
      add(sizes.routing.chosen_groups);
    }
  }
  add_rare(out, c);
  return out.str();
}

ModelInfo info_of(const DecoderConfig& c) {
  ModelInfo info;
  info.type = c.model_type;
  info.sizes = {c.layers, c.dim, c.ffn_dim, c.heads, c.kv_heads, c.head_dim};
  info.vocab = c.vocab;
  info.kv.kv_heads = c.kv_heads;
  info.kv.head_dim = c.head_dim;
  info.kv.values_are_keys = c.latent.has_value();
  if (c.wide) info.kv.wide = {0, c.wide->kv_heads, c.wide->head_dim};
  for (std::int64_t i = 0; i < c.layers; ++i) {
    if (!c.has_attention(i) || !c.has_own_kv(i)) continue;
    ++(c.is_wide(i) ? info.kv.wide.layers : info.kv.layers);
  }
  if (c.recurrent_layers() > 0) {
    StateShape& state = info.state.emplace();
    state.layers = c.recurrent_layers();
    const RecurrentSizes sizes = *c.recurrent_sizes();
    state.anchor_values = sizes.anchor_values;
    state.journal_values = sizes.journal_values;
  }
  if (c.mixed_layers() > 0) {
    const ExpertsSizes& sizes = *c.experts;
    info.experts = {.layers = c.mixed_layers(),
                    .count = sizes.routing.experts,
                    .chosen = sizes.routing.chosen,
                    .ffn_dim = sizes.ffn_dim,
                    .shared_ffn_dim = sizes.shared_ffn_dim,
                    .matrices = c.squared_relu ? 2 : 3};
  }
  info.positions = {c.max_positions, c.max_positions_hard, name_of(c.rope.type)};
  if (c.bos) info.bos = static_cast<Token>(*c.bos);
  for (const std::int64_t id : c.eos) info.eos.push_back(static_cast<Token>(id));
  info.generation = c.generation;
  info.stored_dtype = c.stored_dtype;
  info.scales = c.scales();
  info.plain_norms = !c.zero_centred_norms && c.norms == LayerNorms{};
  info.plain_values = !c.value_norm;
  info.warnings = c.warnings;
  const std::string text = text_of(c);
  info.config_hash = hash_bytes(std::as_bytes(std::span(text)), 0);
  return info;
}

ModelInfo info_of(const DecoderConfig& c, const Checkpoint& checkpoint) {
  ModelInfo info = info_of(c);
  info.mtp_layers = mtp_layers(checkpoint, c);
  if (info.mtp_layers > 1) {
    info.warnings.push_back("its MTP head has " + std::to_string(info.mtp_layers) +
                            " layers, and those of one are supported: it is ignored");
  }
  return info;
}

class DecoderLoader final : public ModelLoader {
 public:
  DecoderLoader(const Checkpoint& checkpoint, const DecoderConfig& config)
      : ModelLoader(info_of(config, checkpoint)), checkpoint_(checkpoint), config_(config) {}

  DType weight_dtype() const override {
    if (const TensorInfo* embedding =
            checkpoint_.find(tensor_prefix(checkpoint_) + config_.embedding + ".weight")) {
      if (const auto number = require_format(*embedding).number()) return *number;
    }
    return config_.stored_dtype.value_or(DType::kBF16);
  }

  std::unique_ptr<Model> load(Backend& backend, const ModelOptions& options) const override {
    if (config_.mixed_layers() > 0 && !backend.has_experts()) {
      throw Error((checkpoint_.path() / "config.json").string() + ": is of type " +
                  config_.model_type + ", a mixture of " +
                  std::to_string(config_.experts->routing.experts) + " experts, which device " +
                  backend.info().kind + " does not compute in " + name_of(backend.numerics()) +
                  "; expected bf16, or device cpu");
    }
    DecoderWeights weights = options.dummy_weights ? dummy_weights(config_, backend)
                                                   : load_weights(checkpoint_, config_, backend);
    DecoderConfig config = config_;
    if (options.dummy_weights && config.mixed_layers() > 0) {
      // Random rows of length 1 are short beside what layers add, which tokens of one context have
      // in common: as they are, these would choose the same experts.
      config.embedding_scale *= std::sqrt(static_cast<float>(config.dim));
    }
    return std::make_unique<Decoder>(config, std::move(weights), backend, options);
  }

  std::unique_ptr<MtpHead> load_mtp(Model& model, Backend& backend, const ModelOptions& options,
                                    std::int64_t page_tokens) const override {
    return load_mtp_head(checkpoint_, config_, model, backend, options, page_tokens);
  }

  void check(Backend& backend) const override { check_weights(checkpoint_, config_, backend); }

  Compatibility judge(Backend& backend) const override {
    return judge_weights(checkpoint_, config_, backend);
  }

 private:
  const Checkpoint& checkpoint_;
  const DecoderConfig config_;
};

}  // namespace

std::unique_ptr<ModelLoader> make_loader(const Checkpoint& checkpoint) {
  return std::make_unique<DecoderLoader>(checkpoint, load_config(checkpoint));
}

}  // namespace dendrite
