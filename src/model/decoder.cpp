#include "model/decoder.h"

#include <algorithm>
#include <cmath>

namespace dendrite {
namespace {

// Logits of one pass stay below this; wide batches over a large vocabulary take several passes.
constexpr std::int64_t kLogitBytes = std::int64_t{128} << 20;

class Pass {
 public:
  explicit Pass(Backend& backend) : backend_(backend) { backend_.begin_pass(); }
  ~Pass() { backend_.end_pass(); }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

 private:
  Backend& backend_;
};

const float* data_of(const std::unique_ptr<Buffer>& buffer) {
  return buffer ? buffer->data() : nullptr;
}

}  // namespace

Decoder::Decoder(const DecoderConfig& config, DecoderWeights weights, Backend& backend,
                 std::int64_t max_rows)
    : config_(config),
      weights_(std::move(weights)),
      backend_(backend),
      max_rows_(max_rows),
      max_logit_rows_(std::clamp<std::int64_t>(kLogitBytes / (config.vocab * 4), 16, max_rows)),
      inv_freq_(inv_freq(config.rope, config.rotary_dim)),
      rope_scaling_(attention_scaling(config.rope)),
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

Tensor Decoder::forward(const Batch& batch, KvStore& kv) {
  const Pass pass(backend_);
  const std::int64_t tokens = batch.rows();
  const auto wanted = static_cast<std::int64_t>(batch.logit_rows.size());
  const auto angles = static_cast<std::size_t>(tokens * config_.rotary_dim);
  fill_cos_sin(inv_freq_, rope_scaling_, batch.positions, host_cos_sin_.data());
  backend_.upload(cos_sin_.data, std::span(host_cos_sin_).first(angles));

  const Tensor hidden = hidden_.first_rows(tokens);
  backend_.embed(hidden, batch.tokens, *weights_.embedding);
  for (std::int64_t i = 0; i < config_.layers; ++i) {
    const DecoderWeights::Layer& layer = weights_.layers[static_cast<std::size_t>(i)];
    add_attention(hidden, layer, i, batch, kv);  // hidden += attention(norm(hidden))
    add_mlp(hidden, layer);                      // hidden += mlp(norm(hidden))
  }
  const Tensor logits = logits_.first_rows(wanted);
  if (wanted == 0) return logits;
  NormMatmul last;
  last.out = logits;
  last.x = hidden;
  last.rows = batch.logit_rows;  // only branches that sample
  last.norm = weights_.final_norm->data();
  last.norm_eps = config_.norm_eps;
  last.weight = &weights_.output_matrix();
  last.gathered = rows_.first_rows(wanted);
  backend_.norm_matmul(last);
  return logits;
}

void Decoder::add_attention(Tensor hidden, const DecoderWeights::Layer& layer, std::int64_t index,
                            const Batch& batch, KvStore& kv) {
  AttentionBlock block;
  block.hidden = hidden;
  block.norm = layer.attn_norm->data();
  block.norm_eps = config_.norm_eps;
  block.qkv = layer.qkv.get();
  block.qkv_bias = data_of(layer.qkv_bias);
  block.out = layer.out.get();
  block.out_bias = data_of(layer.out_bias);
  block.normed = normed_.first_rows(hidden.rows);

  RopeStore& rope = block.rope;
  rope.qkv = qkv_.first_rows(hidden.rows);
  rope.heads = config_.heads;
  rope.kv_heads = config_.kv_heads;
  rope.head_dim = config_.head_dim;
  rope.rotary_dim = config_.rotary_dim;
  rope.cos_sin = cos_sin_.data;
  rope.q_norm = data_of(layer.q_norm);
  rope.k_norm = data_of(layer.k_norm);
  rope.norm_eps = config_.norm_eps;
  rope.slots = batch.slots;
  rope.extra_stores = batch.extra_stores;
  rope.kv = &kv;
  rope.layer = index;

  AttentionArgs& attention = block.attention;
  attention.out = attn_.first_rows(hidden.rows);
  attention.q = rope.qkv.columns(0, config_.heads * config_.head_dim);
  attention.heads = config_.heads;
  attention.scale = softmax_scale_;
  attention.kv = &kv;
  attention.layer = index;
  attention.plan = &batch.plans[window_of_layer_[static_cast<std::size_t>(index)]];
  backend_.attention_block(block);
}

void Decoder::add_mlp(Tensor hidden, const DecoderWeights::Layer& layer) {
  MlpBlock block;
  block.hidden = hidden;
  block.norm = layer.mlp_norm->data();
  block.norm_eps = config_.norm_eps;
  block.gate_up = layer.gate_up.get();
  block.gate_up_bias = data_of(layer.gate_up_bias);
  block.down = layer.down.get();
  block.down_bias = data_of(layer.down_bias);
  block.normed = normed_.first_rows(hidden.rows);
  block.gate_up_out = gate_up_.first_rows(hidden.rows);
  block.act = act_.first_rows(hidden.rows);
  backend_.mlp_block(block);
}

std::unique_ptr<Model> load_model(const ModelFolder& folder, const DecoderConfig& config,
                                  Backend& backend, const ModelOptions& options) {
  DecoderWeights weights = options.dummy_weights ? dummy_weights(config, backend)
                                                 : load_weights(folder, config, backend);
  return std::make_unique<Decoder>(config, std::move(weights), backend, options.max_rows);
}

}  // namespace dendrite
