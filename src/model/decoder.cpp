#include "model/decoder.h"

#include <algorithm>
#include <cmath>

#include "dendrite/error.h"

namespace dendrite {
namespace {

const float* data_of(const std::unique_ptr<Buffer>& buffer) {
  return buffer ? buffer->data() : nullptr;
}

/// 1 / s^2 of what RoPE multiplies cosines and sines by.
float inverse_scale2(const RopeConfig& rope) {
  const auto scaling = static_cast<double>(attention_scaling(rope));
  return static_cast<float>(1 / (scaling * scaling));
}

}  // namespace

Decoder::Decoder(const DecoderConfig& config, DecoderWeights weights, Backend& backend,
                 const ModelOptions& options)
    : config_(config),
      weights_(std::move(weights)),
      backend_(backend),
      number_(backend.new_model()),
      max_rows_(options.max_rows),
      max_logit_rows_(
          std::clamp<std::int64_t>(options.logit_bytes / (config.vocab * 4), 16, options.max_rows)),
      angles_(inv_freq(config.rope, config.rotary_dim), attention_scaling(config.rope)),
      angle_blocks_(angles_, backend),
      softmax_scale_(1.0f / std::sqrt(static_cast<float>(config.head_dim))) {
  for (const std::int64_t window : config_.windows) {
    const auto found = std::find(windows_.begin(), windows_.end(), window);
    window_of_layer_.push_back(static_cast<std::size_t>(found - windows_.begin()));
    if (found == windows_.end()) windows_.push_back(window);
  }
  const DecoderConfig& c = config_;
  hidden_ = buffer(max_rows_, c.dim);
  normed_ = buffer(max_rows_, c.dim);
  qkv_ = buffer(max_rows_, (c.heads + 2 * c.kv_heads) * c.head_dim);
  attn_ = buffer(max_rows_, c.heads * c.head_dim);
  gate_up_ = buffer(max_rows_, 2 * c.ffn_dim);
  act_ = buffer(max_rows_, c.ffn_dim);
  rows_ = buffer(max_logit_rows_, c.dim);
  logits_ = buffer(max_logit_rows_, c.vocab);
  cos_sin_ = buffer(max_rows_, c.rotary_dim);
  host_cos_sin_.resize(static_cast<std::size_t>(max_rows_ * c.rotary_dim));
}

Tensor Decoder::buffer(std::int64_t rows, std::int64_t cols) {
  buffers_.push_back(backend_.make_buffer(rows * cols));
  return {buffers_.back()->data(), rows, cols, cols};
}

PassInputs Decoder::inputs_of(const Batch& batch, KvStore& kv) {
  angles_.fill(batch.positions, host_cos_sin_.data());
  PassInputs inputs;
  inputs.model = number_;
  inputs.kv = &kv;
  inputs.heads = config_.heads;
  inputs.tokens = batch.tokens;
  inputs.slots = batch.slots;
  inputs.extra_stores = batch.extra_stores;
  inputs.logit_rows = batch.logit_rows;
  inputs.plans = batch.plans;
  inputs.first_position = first_position(batch);
  inputs.cos_sin = std::span<const float>(host_cos_sin_)
                       .first(static_cast<std::size_t>(batch.rows() * config_.rotary_dim));
  inputs.cos_sin_device = cos_sin_.data;
  return inputs;
}

Tensor Decoder::forward(const Batch& batch, KvStore& kv) {
  PassInputs inputs = inputs_of(batch, kv);
  inputs.max_rows = max_rows_;
  inputs.max_logit_rows = max_logit_rows_;
  rows_computed_ = batch.rows();
  backend_.run_pass(inputs, [this](const PassInputs& pass) { run_layers(pass); });
  return logits_.first_rows(static_cast<std::int64_t>(batch.logit_rows.size()));
}

Tensor Decoder::hidden() {
  const Tensor normed = normed_.first_rows(rows_computed_);
  backend_.rms_norm(normed, hidden_.first_rows(rows_computed_), weights_.final_norm->data(),
                    config_.norm_eps);
  return normed;
}

/// (Without room for padding, so that no device records it: these are other ops.)
void Decoder::fill(const Batch& batch, KvStore& kv, std::int64_t layers) {
  backend_.run_pass(inputs_of(batch, kv), [&](const PassInputs& pass) {
    const Tensor hidden = hidden_.first_rows(std::ssize(pass.tokens));
    backend_.embed(hidden, pass.tokens, *weights_.embedding);
    for (std::int64_t i = 0; i + 1 < layers; ++i) {
      backend_.attention_sublayer(attention_of(hidden, i, pass));
      add_mlp(hidden, weights_.layers[static_cast<std::size_t>(i)]);
    }
    const AttentionSublayer last = attention_of(hidden, layers - 1, pass);
    backend_.rms_norm(last.normed, hidden, last.norm, last.norm_eps);
    backend_.matmul(last.rope.qkv, last.normed, *last.qkv, last.qkv_bias,
                    Backend::Store::kOverwrite);
    backend_.rope_and_store(last.rope);
  });
}

/// All layers have the same RoPE, and K is normed before it (qk_norm), so nothing else of a model
/// depends on the position. (Positions at which dynamic RoPE would change its angles are refused
/// when a sequence grows, RopeConfig::position_limit.)
std::string Decoder::why_not_move() const {
  if (std::isnormal(inverse_scale2(config_.rope))) return "";
  return "its RoPE multiplies K by " + std::to_string(attention_scaling(config_.rope)) +
         ", which can't be divided by again";
}

void Decoder::move(std::span<const KvMove> runs, KvStore& kv) {
  if (const std::string why = why_not_move(); !why.empty()) throw Error("move: " + why);
  KvMoves moves;
  moves.runs = runs;
  moves.rotary_dim = config_.rotary_dim;
  moves.angles = angle_blocks_.of(runs);
  moves.inverse_scale2 = inverse_scale2(config_.rope);
  moves.kv = &kv;
  backend_.move_kv(moves);
}

void Decoder::run_layers(const PassInputs& pass) {
  const Tensor hidden = hidden_.first_rows(std::ssize(pass.tokens));
  backend_.embed(hidden, pass.tokens, *weights_.embedding);
  for (std::int64_t i = 0; i < config_.layers; ++i) {
    backend_.attention_sublayer(attention_of(hidden, i, pass));     // += attention(norm(hidden))
    add_mlp(hidden, weights_.layers[static_cast<std::size_t>(i)]);  // += mlp(norm(hidden))
    tap(hidden, i);
  }
  const std::int64_t wanted = std::ssize(pass.logit_rows);
  if (wanted == 0) return;
  NormMatmul last;
  last.out = logits_.first_rows(wanted);
  last.x = hidden;
  last.rows = pass.logit_rows;  // only branches that sample
  last.norm = weights_.final_norm->data();
  last.norm_eps = config_.norm_eps;
  last.weight = &weights_.output_matrix();
  last.gathered = rows_.first_rows(wanted);
  backend_.norm_matmul(last);
}

AttentionSublayer Decoder::attention_of(Tensor hidden, std::int64_t index,
                                        const PassInputs& pass) const {
  const DecoderWeights::Layer& layer = weights_.layers[static_cast<std::size_t>(index)];
  AttentionSublayer sublayer;
  sublayer.hidden = hidden;
  sublayer.norm = layer.attn_norm->data();
  sublayer.norm_eps = config_.norm_eps;
  sublayer.qkv = layer.qkv.get();
  sublayer.qkv_bias = data_of(layer.qkv_bias);
  sublayer.out = layer.out.get();
  sublayer.out_bias = data_of(layer.out_bias);
  sublayer.normed = normed_.first_rows(hidden.rows);

  RopeStore& rope = sublayer.rope;
  rope.qkv = qkv_.first_rows(hidden.rows);
  rope.heads = config_.heads;
  rope.kv_heads = config_.kv_heads;
  rope.head_dim = config_.head_dim;
  rope.rotary_dim = config_.rotary_dim;
  rope.cos_sin = cos_sin_.data;
  rope.q_norm = data_of(layer.q_norm);
  rope.k_norm = data_of(layer.k_norm);
  rope.norm_eps = config_.norm_eps;
  rope.slots = pass.slots;
  rope.extra_stores = pass.extra_stores;
  rope.kv = pass.kv;
  rope.layer = index;

  AttentionArgs& attention = sublayer.attention;
  attention.out = attn_.first_rows(hidden.rows);
  attention.q = rope.qkv.columns(0, config_.heads * config_.head_dim);
  attention.heads = config_.heads;
  attention.scale = softmax_scale_;
  attention.kv = pass.kv;
  attention.layer = index;
  attention.plan = &pass.plans[window_of_layer_[static_cast<std::size_t>(index)]];
  return sublayer;
}

void Decoder::add_mlp(Tensor hidden, const DecoderWeights::Layer& layer) {
  MlpSublayer sublayer;
  sublayer.hidden = hidden;
  sublayer.norm = layer.mlp_norm->data();
  sublayer.norm_eps = config_.norm_eps;
  sublayer.gate_up = layer.gate_up.get();
  sublayer.gate_up_bias = data_of(layer.gate_up_bias);
  sublayer.down = layer.down.get();
  sublayer.down_bias = data_of(layer.down_bias);
  sublayer.normed = normed_.first_rows(hidden.rows);
  sublayer.gate_up_out = gate_up_.first_rows(hidden.rows);
  sublayer.act = act_.first_rows(hidden.rows);
  backend_.mlp_sublayer(sublayer);
}

void Decoder::tap(Tensor hidden, std::int64_t layer) {
  const auto found = std::ranges::find(taps_.layers, layer);
  if (found == taps_.layers.end()) return;
  const std::int64_t column = (found - taps_.layers.begin()) * config_.dim;
  backend_.copy(taps_.out.first_rows(hidden.rows).columns(column, config_.dim), hidden);
}

std::unique_ptr<Model> load_model(const ModelFolder& folder, const DecoderConfig& config,
                                  Backend& backend, const ModelOptions& options) {
  DecoderWeights weights = options.dummy_weights ? dummy_weights(config, backend)
                                                 : load_weights(folder, config, backend);
  return std::make_unique<Decoder>(config, std::move(weights), backend, options);
}

}  // namespace dendrite
