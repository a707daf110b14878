#pragma once

#include <algorithm>
#include <utility>

#include "model/angle_blocks.h"
#include "model/config.h"
#include "model/model.h"
#include "model/parts/buffers.h"
#include "model/parts/head.h"
#include "model/parts/layer.h"
#include "model/parts/scratch.h"
#include "model/rope.h"
#include "model/weights.h"

namespace dendrite {

/// The decoder of the Llama family: Llama 2/3.x, Mistral, Qwen2/2.5, Qwen3 and their like, which
/// differ by what DecoderConfig says (biases, per-head norms, windows, RoPE), and of Qwen3.5, LFM2
/// and Granite 4, some of whose layers are recurrent. Sources: Touvron et al. 2023,
/// arXiv:2302.13971; Qwen Team 2025, arXiv:2505.09388 (q/k norms).
class Decoder : public Model {
 public:
  Decoder(const DecoderConfig& config, DecoderWeights weights, Backend& backend,
          const ModelOptions& options);
  Decoder(const Decoder&) = delete;  // its parts know where it is
  Decoder& operator=(const Decoder&) = delete;

  Tensor forward(const Batch& batch, const PathStores& stores) override;
  Tensor hidden() override;
  void fill(const Batch& batch, KvStore& kv, std::int64_t layers) override;
  void move(std::span<const KvMove> runs, KvStore& kv) override;
  std::string why_not_move() const override;
  void prepare_positions(std::int64_t count, const ThreadPool& workers) override;
  void set_taps(Taps taps) override { taps_ = std::move(taps); }
  const Weight& embedding() const override { return *weights_.embedding; }
  const Weight& output_matrix() const override { return weights_.output_matrix(); }
  const std::vector<AttentionWindow>& windows() const override { return windows_; }
  std::int64_t layers_of_window(std::size_t i) const override {
    return std::ranges::count(window_of_layer_, i);
  }
  PassSizes pass_sizes(std::int64_t positions) const override;
  std::int64_t max_rows() const override { return max_rows_; }
  std::int64_t max_logit_rows() const override { return max_logit_rows_; }
  std::int64_t parameters() const override { return weights_.parameters; }
  std::int64_t weight_bytes() const override { return weights_.size_bytes; }
  const Compatibility& compatibility() const override { return weights_.compatibility; }

 private:
  void add_tables();
  /// Layers of each kind are numbered by themselves: those with attention have a place in pages, or
  /// share that of the last one of their kind that has its own, recurrent ones one in states.
  struct Places {
    std::int64_t kept[2] = {};  // layers with a place in each part of the store
    std::int64_t recurrent = 0;
  };
  void add_layers();
  /// Null: the layer has none.
  std::unique_ptr<Mixer> make_mixer(std::int64_t number, DecoderWeights::Layer& layer,
                                    Places& places);
  std::unique_ptr<FeedForward> make_ffn(DecoderWeights::Layer& layer);
  void embed(Tensor hidden, const PassInputs& pass);
  PassInputs inputs_of(const Batch& batch, KvStore& kv);
  void run_layers(const PassInputs& pass);
  void run_layer(std::int64_t number, Tensor hidden, const PassInputs& pass);
  void tap(Tensor hidden, std::int64_t layer);

  DecoderConfig config_;
  DecoderWeights weights_;  // but for the layers', which are theirs
  Backend& backend_;
  std::uint64_t number_;  // PassInputs::model
  std::int64_t max_rows_;
  std::int64_t rows_computed_ = 0;  // of the last forward()
  std::int64_t max_logit_rows_;
  std::vector<AttentionWindow> windows_;      // distinct
  std::vector<std::size_t> window_of_layer_;  // of those with attention: index into windows_
  Taps taps_;
  std::vector<RopeTable> angles_;  // of Angles, as far as some layer has them
  AngleBlocks angle_blocks_;       // of the first

  Buffers buffers_;
  Tensor hidden_;  // [max_rows, dim]: the residual stream
  LayerScratch scratch_;
  /// What goes by positions: angles_, then how queries grow, where they do.
  std::vector<PassTable> tables_;
  std::vector<std::vector<float>> host_tables_;  // [max_rows, rotary_dim], or [max_rows]
  std::optional<LayerInputs> layer_inputs_{};
  std::vector<Layer> layers_;
  Head head_;
};

}  // namespace dendrite
