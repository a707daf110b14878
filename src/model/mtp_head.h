#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "io/checkpoint.h"
#include "model/config.h"
#include "model/model.h"
#include "model/parts/attention.h"
#include "model/parts/buffers.h"
#include "model/parts/experts.h"
#include "model/parts/gated_ffn.h"
#include "model/parts/layer.h"
#include "model/parts/scratch.h"
#include "model/read_along.h"
#include "model/rope.h"
#include "model/slot_rows.h"

namespace dendrite {

/// The weights of a head that predicts one token further than its model (tensors mtp.*), on its
/// device. Embedding and output matrix are the model's.
struct MtpWeights {
  Norm embedding_norm;
  Norm hidden_norm;
  std::unique_ptr<Weight> join;  // [dim, 2 * dim]: of the embedding, then of the hidden state
  /// The layer's first norm, K and V once more: what is read along takes no queries.
  Norm context_norm;
  Linear context;  // [2 * kv_heads * head_dim, dim]
  AttentionWeights attention;
  std::variant<GatedFfnWeights, ExpertsWeights> ffn;
  Norm final_norm;
  std::int64_t parameters = 0;
  std::int64_t size_bytes = 0;  // on the device
};

/// The MTP head of Qwen3-Next and Qwen3.5: with h the model's hidden state behind its final norm,
///   x(p) = W [norm(embedding of the token at p) | norm(h(p - 1))]
/// goes through one layer of full attention, and norm and output matrix give what follows p.
/// Drafts go on with what that norm gives as h.
///
/// Here all of p is kept at p: x(p) knows the tokens up to p and no other, as K and V of the model
/// at p do, so K and V of the head lie in the same slots, and whoever has a page has them (files'
/// descriptions count x(p) as of p - 1; RoPE knows differences alone). h(p - 1) is often of an
/// earlier step: hidden states of the latest rows are kept in a ring, and found by slots. Where
/// there is none, and at p = 0, x(p) is zeros: K and V of zeros, which attention hardly notices.
/// That may make drafts worse, and changes no token.
class MtpHead final : public ReadAlong {
 public:
  MtpHead(const DecoderConfig& config, MtpWeights weights, Model& model, Backend& backend,
          const ModelOptions& options, std::int64_t page_tokens);
  MtpHead(const MtpHead&) = delete;  // its parts know where it is
  MtpHead& operator=(const MtpHead&) = delete;

  void add_context(const Batch& batch, KvStore& kv) override;
  KvShape shape_beside(KvShape model) const override;
  bool wants_places() const override { return true; }
  SlotCopies* copies() override { return &kept_; }

  /// Whether the hidden state of the token in that slot is at hand.
  bool knows(std::int64_t slot) const { return kept_.find(slot) >= 0; }
  std::int64_t max_rows() const { return max_rows_; }  // of a draft's pass
  /// Of what x(p) is made beside the token at p.
  enum class From : std::uint8_t {
    kModel,  // the hidden state of the token at Batch::before, which is known
    kDraft,  // what the same row of the last draft() gave
  };
  /// One row for each of some texts: its K and V go to its slot. Logits [rows, vocab] of the token
  /// after it, in device memory that the next call reuses. Requires rows <= max_rows().
  Tensor draft(const Batch& batch, KvStore& kv, From from);

  std::int64_t parameters() const override { return weights_.parameters; }
  std::int64_t weight_bytes() const override { return weights_.size_bytes; }

 private:
  PassInputs inputs_of(const Batch& batch, KvStore& kv);
  void use_kept(const Batch& batch);
  void enter(Tensor hidden, const PassInputs& pass);
  void run_context(const PassInputs& pass);
  void run_draft(const PassInputs& pass);

  DecoderConfig config_;
  MtpWeights weights_;  // but for the layer's, which are its own
  Model& model_;
  Backend& backend_;
  const std::uint64_t context_number_;  // PassInputs::model
  const std::uint64_t draft_number_;
  const std::int64_t max_rows_;
  RopeTable angles_;
  SlotRows kept_;
  // Of a pass, by row:
  std::vector<float> host_angles_;         // [rows, rotary_dim]
  std::vector<float> host_known_;          // 1, or 0 where x is to be zeros
  std::vector<std::int32_t> hidden_rows_;  // of ring_
  std::vector<PassTable> tables_;          // of the pass: angles, known

  Buffers buffers_;
  /// [kept rows + max_rows, dim]: hidden states behind norms, the model's, then those of drafts.
  Tensor ring_;
  // [the model's max_rows, ...]
  Tensor pair_;        // [, 2 * dim]
  Tensor hidden_;      // [, dim]
  Tensor context_kv_;  // [, 2 * kv_heads * head_dim]
  Tensor device_angles_;
  Tensor device_known_;
  Tensor logits_;  // [max_rows, vocab]
  LayerScratch scratch_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<FeedForward> feed_forward_;
};

/// Layers of the checkpoint's MTP head, by its tensors' names; 0: there is none. Without tensors:
/// what the config says.
std::int64_t mtp_layers(const Checkpoint& checkpoint, const DecoderConfig& config);

/// Loads the head. Throws Error as load_model does, and where it has other layers than one, or an
/// embedding of its own. The model outlives it.
std::unique_ptr<MtpHead> load_mtp_head(const Checkpoint& checkpoint, const DecoderConfig& config,
                                       Model& model, Backend& backend, const ModelOptions& options,
                                       std::int64_t page_tokens);

}  // namespace dendrite
