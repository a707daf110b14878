#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "model/drafter_config.h"
#include "model/model.h"
#include "model/parts/attention.h"
#include "model/parts/buffers.h"
#include "model/parts/gated_ffn.h"
#include "model/parts/head.h"
#include "model/parts/layer.h"
#include "model/parts/scratch.h"
#include "model/read_along.h"
#include "model/rope.h"

namespace dendrite {

/// The weights of a block drafter on its device. Embedding and output matrix are the model's.
struct DrafterWeights {
  struct Layer {
    AttentionWeights attention;
    GatedFfnWeights ffn;
  };
  std::unique_ptr<Weight> taps;  // [dim, taps * dim]
  Norm taps_norm;
  /// K and V of all layers once more, [layers * 2 * kv_heads * head_dim, dim]: what is read along
  /// takes one product.
  std::unique_ptr<Weight> context;
  std::vector<Layer> layers;
  Norm final_norm;
  std::int64_t parameters = 0;
  std::int64_t size_bytes = 0;  // on the device
};

/// A block drafter (DFlash, arXiv 2602.06036): in one pass it says for each of a few masked
/// positions after a text which tokens are likely there. The text it knows by K and V that it makes
/// from what the model says between its layers, H = norm(W_taps * [taps]), which enter its layers
/// as context alone: K = rope(k_norm(W_k H)), V = W_v H.
class Drafter final : public ReadAlong {
 public:
  Drafter(const DrafterConfig& config, DrafterWeights weights, const Model& model, Backend& backend,
          const ModelOptions& options);
  Drafter(const Drafter&) = delete;  // its parts know where it is
  Drafter& operator=(const Drafter&) = delete;

  const DrafterConfig& config() const { return config_; }
  /// [the model's max_rows, taps * dim]: where the model's pass puts what its layers say.
  Tensor features() const { return features_; }
  /// Of the rows whose features are there.
  void add_context(const Batch& batch, KvStore& kv) override;
  KvShape shape_beside(KvShape model) const override;

  /// The distinct kinds of attention of the layers; a block's batch carries one plan for each.
  const std::vector<DrafterConfig::Attention>& kinds() const { return kinds_; }
  std::int64_t max_rows() const { return max_rows_; }  // of a block's pass
  std::int64_t max_logit_rows() const { return max_logit_rows_; }
  /// Runs the rows of blocks; their K and V go to their slots. Where all of a block is seen by its
  /// rows, its plan says so. Logits [batch.logit_rows.size(), vocab] of the token *at* a row's
  /// position, in device memory that the next call reuses.
  Tensor draft(const Batch& batch, KvStore& kv);

  std::int64_t parameters() const override { return weights_.parameters; }
  std::int64_t weight_bytes() const override { return weights_.size_bytes; }

 private:
  void run_context(const PassInputs& pass);
  void run_block(const PassInputs& pass);
  PassInputs inputs_of(const Batch& batch, KvStore& kv, Tensor cos_sin);

  DrafterConfig config_;
  DrafterWeights weights_;  // but for the layers', which are theirs
  const Model& model_;
  Backend& backend_;
  const std::uint64_t context_number_;  // PassInputs::model
  const std::uint64_t block_number_;
  const std::int64_t max_rows_;
  const std::int64_t max_logit_rows_;
  std::vector<DrafterConfig::Attention> kinds_;
  RopeTable angles_;
  std::vector<float> host_cos_sin_;
  PassTable table_;  // of the pass: the angles

  Buffers buffers_;
  // Of the model's passes: [its max_rows, ...]
  Tensor features_;         // [, taps * dim]
  Tensor context_;          // [, dim]: H
  Tensor context_kv_;       // [, layers * 2 * kv_heads * head_dim]
  Tensor context_cos_sin_;  // [, head_dim]
  // Of blocks: [max_rows, ...]
  Tensor hidden_;  // [, dim]
  LayerScratch scratch_;
  Tensor cos_sin_;  // [, head_dim]
  std::vector<Layer> layers_;
  std::vector<const Attention*> attention_;  // of the layers
  Head head_;
};

/// Loads the drafter of a checkpoint; `config` is what load_drafter_config returned for it. Throws
/// Error as load_model does. The model outlives it.
std::unique_ptr<Drafter> load_drafter(const Checkpoint& checkpoint, const DrafterConfig& config,
                                      const Model& model, Backend& backend,
                                      const ModelOptions& options);

}  // namespace dendrite
