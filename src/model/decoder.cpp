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
      add_attention(hidden, i, pass);
      add_mlp(hidden, weights_.layers[static_cast<std::size_t>(i)]);
    }
    add_keys(hidden, layers - 1, pass);
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
    add_attention(hidden, i, pass);                                 // += attention(norm(hidden))
    add_mlp(hidden, weights_.layers[static_cast<std::size_t>(i)]);  // += mlp(norm(hidden))
    tap(hidden, i);
  }
  const std::int64_t wanted = std::ssize(pass.logit_rows);
  if (wanted == 0) return;
  Product last;
  last.weight = &weights_.output_matrix();
  last.in = last.weight->input(rows_.first_rows(wanted));
  last.x = hidden;
  last.norm = weights_.final_norm->data();
  last.norm_eps = config_.norm_eps;
  last.gather = pass.logit_rows;  // only branches that sample
  last.out = logits_.first_rows(wanted);
  backend_.product(last);
}

void Decoder::add_keys(Tensor hidden, std::int64_t index, const PassInputs& pass) {
  const DecoderWeights::Layer& layer = weights_.layers[static_cast<std::size_t>(index)];
  RopeStore rope;
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

  Product qkv;
  qkv.weight = layer.qkv.get();
  qkv.bias = data_of(layer.qkv_bias);
  qkv.in = layer.qkv->input(normed_.first_rows(hidden.rows));
  qkv.x = hidden;
  qkv.norm = layer.attn_norm->data();
  qkv.norm_eps = config_.norm_eps;
  qkv.epilogue = Epilogue::kRope;
  qkv.out = rope.qkv;
  qkv.rope = &rope;
  backend_.product(qkv);
}

void Decoder::add_attention(Tensor hidden, std::int64_t index, const PassInputs& pass) {
  add_keys(hidden, index, pass);
  const DecoderWeights::Layer& layer = weights_.layers[static_cast<std::size_t>(index)];
  AttentionArgs attention;
  attention.out = layer.out->input(attn_.first_rows(hidden.rows));
  attention.q = qkv_.first_rows(hidden.rows).columns(0, config_.heads * config_.head_dim);
  attention.heads = config_.heads;
  attention.scale = softmax_scale_;
  attention.kv = pass.kv;
  attention.layer = index;
  attention.plan = &pass.plans[window_of_layer_[static_cast<std::size_t>(index)]];
  backend_.attention(attention);

  Product out;
  out.weight = layer.out.get();
  out.bias = data_of(layer.out_bias);
  out.in = attention.out;
  out.epilogue = Epilogue::kAdd;
  out.out = hidden;
  backend_.product(out);
}

void Decoder::add_mlp(Tensor hidden, const DecoderWeights::Layer& layer) {
  Product gate_up;
  gate_up.weight = layer.gate_up.get();
  gate_up.bias = data_of(layer.gate_up_bias);
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
  down.bias = data_of(layer.down_bias);
  down.in = gate_up.act;
  down.epilogue = Epilogue::kAdd;
  down.out = hidden;
  backend_.product(down);
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
