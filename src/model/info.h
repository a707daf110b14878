#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/kv_store.h"
#include "backend/state_store.h"
#include "core/dtype.h"
#include "dendrite/types.h"
#include "model/generation_config.h"

namespace dendrite {

/// All that an engine knows of a model, whatever its family. It is what the checkpoint's files say,
/// so it is there without weights, too. What only the computing needs (norms, biases, angles) stays
/// with the family.
struct ModelInfo {
  std::string type;  // as config.json calls its family: "llama", "qwen3"
  struct Sizes {
    std::int64_t layers = 0;
    std::int64_t dim = 0;  // width of the residual stream
    std::int64_t ffn_dim = 0;
    std::int64_t heads = 0;
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;
  };
  Sizes sizes;
  std::int64_t vocab = 0;  // rows of the embedding; may exceed the tokenizer's
  /// What K and V of a token take: layers that have them, kv_heads, head_dim. The rest of it is the
  /// engine's.
  KvShape kv;
  /// What recurrent layers keep, slots excepted; none: there are no such layers.
  std::optional<StateShape> state;
  /// Layers that are mixtures of experts; 0 of them: there are none.
  struct Experts {
    std::int64_t layers = 0;
    std::int64_t count = 0;           // that are chosen from
    std::int64_t chosen = 0;          // a token
    std::int64_t ffn_dim = 0;         // of an expert
    std::int64_t shared_ffn_dim = 0;  // of the one that all tokens take; 0: there is none
    std::int64_t matrices = 3;        // of an expert; without gates 2

    /// Weights that a token does not meet, of a model so wide.
    std::int64_t idle(std::int64_t dim) const {
      return layers * (count - chosen) * matrices * ffn_dim * dim;
    }
  };
  Experts experts;
  /// Layers of a head that predicts one token further, which the files have beside the model (MTP);
  /// 0: they have none.
  std::int64_t mtp_layers = 0;
  struct Positions {
    std::int64_t max = 0;  // what the model was made for
    bool hard = false;     // beyond these cached keys would be wrong, not only answers worse
    std::string rope;      // how they are told: "default", "yarn", ...
  };
  Positions positions;
  std::optional<Token> bos;
  std::vector<Token> eos;  // generation ends on any of these; all < vocab
  bool scales = false;     // embeddings or logits are scaled behind their matrices
  /// Whether each product of a layer's input is behind a norm that multiplies by what is stored,
  /// under the names that Llama has.
  bool plain_norms = true;
  bool plain_values = true;  // v goes into attention as its product gives it
  GenerationDefaults generation;
  std::optional<DType> stored_dtype;  // as config.json says; see ModelLoader::weight_dtype
  std::vector<std::string> warnings;  // what was odd but usable, one line each
  /// Of all in the config that K, V and logits depend on, and nothing else: model_fingerprint goes
  /// on from it.
  std::uint64_t config_hash = 0;
};

}  // namespace dendrite
