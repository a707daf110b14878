#include "model/drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/weight_source.h"

namespace dendrite {
namespace {

/// Blocks of one pass: as many as fill a device, and their logits in this many bytes.
constexpr std::int64_t kMostBlocks = 32;
constexpr std::int64_t kLogitBytes = std::int64_t{256} << 20;

DrafterWeights read_all(WeightSource& source, const DrafterConfig& c) {
  const std::int64_t q = c.heads * c.head_dim;
  const std::int64_t kv = c.kv_heads * c.head_dim;
  DrafterWeights weights;
  weights.taps = source.matrix({{"fc.weight", c.dim}}, std::ssize(c.taps) * c.dim);
  weights.taps_norm = source.vector({{"hidden_norm.weight", c.dim}}, 1.0F);
  std::vector<WeightSource::Part> context;
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const auto name = [i](const char* rest) {
      return "layers." + std::to_string(i) + "." + rest + ".weight";
    };
    DrafterWeights::Layer& layer = weights.layers.emplace_back();
    layer.attn_norm = source.vector({{name("input_layernorm"), c.dim}}, 1.0F);
    layer.qkv = source.matrix({{name("self_attn.q_proj"), q},
                               {name("self_attn.k_proj"), kv},
                               {name("self_attn.v_proj"), kv}},
                              c.dim);
    layer.q_norm = source.vector({{name("self_attn.q_norm"), c.head_dim}}, 1.0F);
    layer.k_norm = source.vector({{name("self_attn.k_norm"), c.head_dim}}, 1.0F);
    layer.out = source.matrix({{name("self_attn.o_proj"), c.dim}}, q);
    layer.mlp_norm = source.vector({{name("post_attention_layernorm"), c.dim}}, 1.0F);
    layer.gate_up = source.matrix(
        {{name("mlp.gate_proj"), c.ffn_dim}, {name("mlp.up_proj"), c.ffn_dim}}, c.dim);
    layer.down = source.matrix({{name("mlp.down_proj"), c.dim}}, c.ffn_dim);
    context.push_back({name("self_attn.k_proj"), kv});
    context.push_back({name("self_attn.v_proj"), kv});
  }
  weights.final_norm = source.vector({{"norm.weight", c.dim}}, 1.0F);
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
      softmax_scale_(1.0F / std::sqrt(static_cast<float>(config.head_dim))) {
  for (const DrafterConfig::Attention& kind : config_.attention) {
    const auto found = std::ranges::find(kinds_, kind);
    kind_of_layer_.push_back(static_cast<std::size_t>(found - kinds_.begin()));
    if (found == kinds_.end()) kinds_.push_back(kind);
  }
  const DrafterConfig& c = config_;
  const std::int64_t kv = c.kv_heads * c.head_dim;
  features_ = buffer(model.max_rows(), std::ssize(c.taps) * c.dim);
  context_ = buffer(model.max_rows(), c.dim);
  context_kv_ = buffer(model.max_rows(), c.layers * 2 * kv);
  context_cos_sin_ = buffer(model.max_rows(), c.head_dim);
  hidden_ = buffer(max_rows_, c.dim);
  normed_ = buffer(max_rows_, c.dim);
  qkv_ = buffer(max_rows_, c.heads * c.head_dim + 2 * kv);
  attn_ = buffer(max_rows_, c.heads * c.head_dim);
  gate_up_ = buffer(max_rows_, 2 * c.ffn_dim);
  act_ = buffer(max_rows_, c.ffn_dim);
  rows_ = buffer(max_logit_rows_, c.dim);
  logits_ = buffer(max_logit_rows_, c.vocab);
  cos_sin_ = buffer(max_rows_, c.head_dim);
}

Tensor Drafter::buffer(std::int64_t rows, std::int64_t cols) {
  buffers_.push_back(backend_.make_buffer(rows * cols));
  return {buffers_.back()->data(), rows, cols, cols};
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
  inputs.cos_sin = host_cos_sin_;
  inputs.cos_sin_device = cos_sin.data;
  inputs.max_rows = cos_sin.rows;
  return inputs;
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
  backend_.rms_norm(context, context, weights_.taps_norm->data(), config_.norm_eps);
  const Tensor all = context_kv_.first_rows(rows);
  backend_.matmul(all, context, *weights_.context, nullptr, Backend::Store::kOverwrite);
  const std::int64_t columns = 2 * config_.kv_heads * config_.head_dim;
  for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
    const Tensor kv = all.columns(static_cast<std::int64_t>(i) * columns, columns);
    RopeStore rope = rope_of(i, kv, pass);
    rope.heads = 0;  // no queries
    backend_.rope_and_store(rope);
  }
}

Tensor Drafter::draft(const Batch& batch, KvStore& kv) {
  PassInputs inputs = inputs_of(batch, kv, cos_sin_);
  inputs.model = block_number_;
  inputs.logit_rows = batch.logit_rows;
  inputs.plans = batch.plans;
  inputs.max_logit_rows = max_logit_rows_;
  backend_.run_pass(inputs, [this](const PassInputs& pass) { run_block(pass); });
  return logits_.first_rows(static_cast<std::int64_t>(batch.logit_rows.size()));
}

void Drafter::run_block(const PassInputs& pass) {
  const Tensor hidden = hidden_.first_rows(std::ssize(pass.tokens));
  backend_.embed(hidden, pass.tokens, model_.embedding());
  for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
    add_attention(hidden, i, pass);
    add_mlp(hidden, weights_.layers[i]);
  }
  const std::int64_t wanted = std::ssize(pass.logit_rows);
  Product last;
  last.weight = &model_.output_matrix();
  last.in = last.weight->input(rows_.first_rows(wanted));
  last.x = hidden;
  last.norm = weights_.final_norm->data();
  last.norm_eps = config_.norm_eps;
  last.gather = pass.logit_rows;
  last.out = logits_.first_rows(wanted);
  backend_.product(last);
}

RopeStore Drafter::rope_of(std::size_t layer, Tensor qkv, const PassInputs& pass) const {
  RopeStore rope;
  rope.qkv = qkv;
  rope.heads = config_.heads;
  rope.kv_heads = config_.kv_heads;
  rope.head_dim = config_.head_dim;
  rope.rotary_dim = config_.head_dim;
  rope.cos_sin = pass.cos_sin_device;
  rope.q_norm = weights_.layers[layer].q_norm->data();
  rope.k_norm = weights_.layers[layer].k_norm->data();
  rope.norm_eps = config_.norm_eps;
  rope.slots = pass.slots;
  rope.extra_stores = pass.extra_stores;
  rope.kv = pass.kv;
  rope.layer = static_cast<std::int64_t>(layer);
  return rope;
}

void Drafter::add_attention(Tensor hidden, std::size_t index, const PassInputs& pass) {
  const DrafterWeights::Layer& layer = weights_.layers[index];
  const RopeStore rope = rope_of(index, qkv_.first_rows(hidden.rows), pass);
  Product qkv;
  qkv.weight = layer.qkv.get();
  qkv.in = layer.qkv->input(normed_.first_rows(hidden.rows));
  qkv.x = hidden;
  qkv.norm = layer.attn_norm->data();
  qkv.norm_eps = config_.norm_eps;
  qkv.epilogue = Epilogue::kRope;
  qkv.out = rope.qkv;
  qkv.rope = &rope;
  backend_.product(qkv);

  AttentionArgs attention;
  attention.out = layer.out->input(attn_.first_rows(hidden.rows));
  attention.q = rope.qkv.columns(0, config_.heads * config_.head_dim);
  attention.heads = config_.heads;
  attention.scale = softmax_scale_;
  attention.kv = pass.kv;
  attention.layer = static_cast<std::int64_t>(index);
  attention.plan = &pass.plans[kind_of_layer_[index]];
  backend_.attention(attention);

  Product out;
  out.weight = layer.out.get();
  out.in = attention.out;
  out.epilogue = Epilogue::kAdd;
  out.out = hidden;
  backend_.product(out);
}

void Drafter::add_mlp(Tensor hidden, const DrafterWeights::Layer& layer) {
  Product gate_up;
  gate_up.weight = layer.gate_up.get();
  gate_up.in = layer.gate_up->input(normed_.first_rows(hidden.rows));
  gate_up.x = hidden;
  gate_up.norm = layer.mlp_norm->data();
  gate_up.norm_eps = config_.norm_eps;
  gate_up.epilogue = Epilogue::kSiluMul;
  gate_up.out = gate_up_.first_rows(hidden.rows);
  gate_up.act = layer.down->input(act_.first_rows(hidden.rows));
  backend_.product(gate_up);

  Product down;
  down.weight = layer.down.get();
  down.in = gate_up.act;
  down.epilogue = Epilogue::kAdd;
  down.out = hidden;
  backend_.product(down);
}

std::unique_ptr<Drafter> load_drafter(const ModelFolder& folder, const DrafterConfig& config,
                                      const Model& model, Backend& backend,
                                      const ModelOptions& options) {
  using Walk = WeightSource::Walk;
  if (!options.dummy_weights) {
    WeightSource check(Walk::kCheck, &folder, backend);
    read_all(check, config);
  }
  WeightSource source(options.dummy_weights ? Walk::kRandom : Walk::kRead, &folder, backend);
  return std::make_unique<Drafter>(config, read_all(source, config), model, backend, options);
}

}  // namespace dendrite
