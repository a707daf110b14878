#include "model/drafter.h"

#include <algorithm>
#include <string>
#include <utility>

#include "model/parts/weight_source.h"

namespace dendrite {
namespace {

/// Blocks of one pass: as many as fill a device, and their logits in this many bytes.
constexpr std::int64_t kMostBlocks = 32;
constexpr std::int64_t kLogitBytes = std::int64_t{256} << 20;

AttentionShape attention_shape(const DrafterConfig& c) {
  AttentionShape shape;
  shape.dim = c.dim;
  shape.heads = c.heads;
  shape.kv_heads = c.kv_heads;
  shape.head_dim = c.head_dim;
  shape.rotary_dim = c.head_dim;
  shape.qk_norm = true;
  shape.norm_eps = c.norm_eps;
  return shape;
}

DrafterWeights read_all(WeightSource& source, const DrafterConfig& c) {
  const AttentionShape attention = attention_shape(c);
  const GatedFfnShape ffn{c.dim, c.ffn_dim, false, c.norm_eps};
  const std::int64_t kv = c.kv_heads * c.head_dim;
  DrafterWeights weights;
  weights.taps = source.matrix({{"fc.weight", c.dim}}, std::ssize(c.taps) * c.dim);
  weights.taps_norm = {source.vector({{"hidden_norm.weight", c.dim}}, 1.0F), c.norm_eps};
  std::vector<WeightSource::Part> context;
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    DrafterWeights::Layer& layer = weights.layers.emplace_back();
    layer.attention = AttentionWeights::read(source, prefix, attention);
    layer.ffn = GatedFfnWeights::read(source, prefix, ffn);
    context.push_back({prefix + "self_attn.k_proj.weight", kv});
    context.push_back({prefix + "self_attn.v_proj.weight", kv});
  }
  weights.final_norm = {source.vector({{"norm.weight", c.dim}}, 1.0F), c.norm_eps};
  weights.parameters = source.parameters();
  weights.context = source.matrix(context, c.dim);
  weights.size_bytes = source.size_bytes();
  return weights;
}

}  // namespace

Drafter::Drafter(const DrafterConfig& config, DrafterWeights weights, const Model& model,
                 Backend& backend, const ModelOptions& options)
    : config_(config),
      weights_(std::move(weights)),
      model_(model),
      backend_(backend),
      context_number_(backend.new_model()),
      block_number_(backend.new_model()),
      max_rows_(
          std::max(config.block_size, std::min(options.max_rows, kMostBlocks * config.block_size))),
      max_logit_rows_(
          std::clamp(kLogitBytes / (config.vocab * 4), config.block_size - 1, max_rows_)),
      angles_(inv_freq(config.rope, config.head_dim), attention_scaling(config.rope)),
      buffers_(backend),
      features_(buffers_.make(model.max_rows(), std::ssize(config.taps) * config.dim)),
      context_(buffers_.make(model.max_rows(), config.dim)),
      context_kv_(
          buffers_.make(model.max_rows(), config.layers * 2 * config.kv_heads * config.head_dim)),
      context_cos_sin_(buffers_.make(model.max_rows(), config.head_dim)),
      hidden_(buffers_.make(max_rows_, config.dim)),
      scratch_(
          layer_scratch(buffers_, max_rows_, widths_of(attention_shape(config)), config.ffn_dim)),
      cos_sin_(buffers_.make(max_rows_, config.head_dim)),
      head_(weights_.final_norm, model.output_matrix(), backend,
            buffers_.make(max_logit_rows_, config.dim),
            buffers_.make(max_logit_rows_, config.vocab)) {
  const AttentionShape shape = attention_shape(config_);
  for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
    const DrafterConfig::Attention& kind = config_.attention[i];
    const auto found = std::ranges::find(kinds_, kind);
    const auto plan = static_cast<std::size_t>(found - kinds_.begin());
    if (found == kinds_.end()) kinds_.push_back(kind);
    DrafterWeights::Layer& layer = weights_.layers[i];
    const AttentionPlace place{.layer = static_cast<std::int64_t>(i), .plan = plan};
    auto attention =
        std::make_unique<Attention>(shape, std::move(layer.attention), place, backend, scratch_);
    attention_.push_back(attention.get());
    layers_.push_back({std::move(attention),
                       std::make_unique<GatedFfn>(std::move(layer.ffn), backend, scratch_)});
  }
  weights_.layers.clear();
}

PassInputs Drafter::inputs_of(const Batch& batch, KvStore& kv, Tensor cos_sin) {
  host_cos_sin_.resize(static_cast<std::size_t>(batch.rows() * config_.head_dim));
  angles_.fill(batch.positions, host_cos_sin_.data());
  PassInputs inputs;
  inputs.kv = &kv;
  inputs.heads = config_.heads;
  inputs.tokens = batch.tokens;
  inputs.slots = batch.slots;
  inputs.extra_stores = batch.extra_stores;
  inputs.first_position = first_position(batch);
  table_ = {host_cos_sin_, cos_sin.data};
  inputs.tables = {&table_, 1};
  inputs.max_rows = cos_sin.rows;
  return inputs;
}

KvShape Drafter::shape_beside(KvShape model) const {
  model.layers = config_.layers;
  model.kv_heads = config_.kv_heads;
  model.head_dim = config_.head_dim;
  model.wide = {};
  model.guarded = false;
  model.values_are_keys = false;
  return model;
}

void Drafter::add_context(const Batch& batch, KvStore& kv) {
  PassInputs inputs = inputs_of(batch, kv, context_cos_sin_);
  inputs.model = context_number_;
  backend_.run_pass(inputs, [this](const PassInputs& pass) { run_context(pass); });
}

void Drafter::run_context(const PassInputs& pass) {
  const std::int64_t rows = std::ssize(pass.tokens);
  const Tensor context = context_.first_rows(rows);
  backend_.matmul(context, features_.first_rows(rows), *weights_.taps, nullptr,
                  Backend::Store::kOverwrite);
  backend_.rms_norm(context, context, weights_.taps_norm.weight->data(), config_.norm_eps);
  const Tensor all = context_kv_.first_rows(rows);
  backend_.matmul(all, context, *weights_.context, nullptr, Backend::Store::kOverwrite);
  const std::int64_t columns = 2 * config_.kv_heads * config_.head_dim;
  for (std::size_t i = 0; i < attention_.size(); ++i) {
    attention_[i]->store(all.columns(static_cast<std::int64_t>(i) * columns, columns), pass);
  }
}

Tensor Drafter::draft(const Batch& batch, KvStore& kv) {
  PassInputs inputs = inputs_of(batch, kv, cos_sin_);
  inputs.model = block_number_;
  inputs.logit_rows = batch.logit_rows;
  inputs.plans = batch.plans;
  inputs.max_logit_rows = max_logit_rows_;
  backend_.run_pass(inputs, [this](const PassInputs& pass) { run_block(pass); });
  return head_.logits(static_cast<std::int64_t>(batch.logit_rows.size()));
}

void Drafter::run_block(const PassInputs& pass) {
  const Tensor hidden = hidden_.first_rows(std::ssize(pass.tokens));
  backend_.embed(hidden, pass.tokens, model_.embedding());
  for (const Layer& layer : layers_) {
    layer.mixer->add(hidden, pass);
    layer.feed_forward->add(hidden);
  }
  head_.run(hidden, pass.logit_rows);
}

std::unique_ptr<Drafter> load_drafter(const Checkpoint& checkpoint, const DrafterConfig& config,
                                      const Model& model, Backend& backend,
                                      const ModelOptions& options) {
  using Walk = WeightSource::Walk;
  if (!options.dummy_weights) {
    WeightSource check(Walk::kCheck, &checkpoint, backend);
    read_all(check, config);
  }
  WeightSource source(options.dummy_weights ? Walk::kRandom : Walk::kRead, &checkpoint, backend);
  return std::make_unique<Drafter>(config, read_all(source, config), model, backend, options);
}

}  // namespace dendrite
