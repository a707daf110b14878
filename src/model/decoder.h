#pragma once

#include <algorithm>
#include <utility>

#include "model/angle_blocks.h"
#include "model/model.h"
#include "model/rope.h"
#include "model/weights.h"

namespace dendrite {

/// The decoder of the Llama family: Llama 2/3.x, Mistral, Qwen2/2.5, Qwen3 and their like, which
/// differ by what DecoderConfig says (biases, per-head norms, windows, RoPE). Sources: Touvron et
/// al. 2023, arXiv:2302.13971; Qwen Team 2025, arXiv:2505.09388 (q/k norms).
class Decoder : public Model {
 public:
  Decoder(const DecoderConfig& config, DecoderWeights weights, Backend& backend,
          const ModelOptions& options);

  Tensor forward(const Batch& batch, KvStore& kv) override;
  Tensor hidden() override;
  void fill(const Batch& batch, KvStore& kv, std::int64_t layers) override;
  void move(std::span<const KvMove> runs, KvStore& kv) override;
  std::string why_not_move() const override;
  void set_taps(Taps taps) override { taps_ = std::move(taps); }
  const Weight& embedding() const override { return *weights_.embedding; }
  const Weight& output_matrix() const override { return weights_.output_matrix(); }
  const std::vector<std::int64_t>& windows() const override { return windows_; }
  std::int64_t layers_of_window(std::size_t i) const override {
    return std::ranges::count(window_of_layer_, i);
  }
  std::int64_t max_rows() const override { return max_rows_; }
  std::int64_t max_logit_rows() const override { return max_logit_rows_; }
  std::int64_t parameters() const override { return weights_.parameters; }
  std::int64_t weight_bytes() const override { return weights_.size_bytes; }

 private:
  PassInputs inputs_of(const Batch& batch, KvStore& kv);
  void run_layers(const PassInputs& pass);
  /// K and V of the rows in a layer are stored, and their queries are in qkv_.
  void add_keys(Tensor hidden, std::int64_t index, const PassInputs& pass);
  void add_attention(Tensor hidden, std::int64_t index, const PassInputs& pass);
  void tap(Tensor hidden, std::int64_t layer);
  void add_mlp(Tensor hidden, const DecoderWeights::Layer& layer);
  Tensor buffer(std::int64_t rows, std::int64_t cols);

  DecoderConfig config_;
  DecoderWeights weights_;
  Backend& backend_;
  std::uint64_t number_;  // PassInputs::model
  std::int64_t max_rows_;
  std::int64_t rows_computed_ = 0;  // of the last forward()
  std::int64_t max_logit_rows_;
  std::vector<std::int64_t> windows_;         // distinct
  std::vector<std::size_t> window_of_layer_;  // index into windows_
  Taps taps_;
  RopeTable angles_;
  AngleBlocks angle_blocks_;
  float softmax_scale_;

  std::vector<std::unique_ptr<Buffer>> buffers_;
  Tensor hidden_;   // [max_rows, dim]: the residual stream
  Tensor normed_;   // [max_rows, dim]
  Tensor qkv_;      // [max_rows, (heads + 2 * kv_heads) * head_dim]
  Tensor attn_;     // [max_rows, heads * head_dim]
  Tensor gate_up_;  // [max_rows, 2 * ffn_dim]
  Tensor act_;      // [max_rows, ffn_dim]
  Tensor rows_;     // [max_logit_rows, dim]: only rows that sample
  Tensor logits_;   // [max_logit_rows, vocab]
  Tensor cos_sin_;  // [max_rows, rotary_dim]
  std::vector<float> host_cos_sin_;
};

}  // namespace dendrite
