#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "model/parts/layer_input_sizes.h"
#include "model/parts/linear.h"
#include "model/parts/scratch.h"
#include "model/parts/weight_source.h"

namespace dendrite {

struct LayerInputsShape : LayerInputSizes {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;  // width of the residual stream
  float norm_eps = 0;
};

struct LayerInputsWeights {
  std::unique_ptr<Weight> table;  // [vocab, layers * dim]
  Linear projection;              // [layers * dim, hidden]
  Norm norm;                      // [dim]

  /// By Hugging Face's names behind the model's `prefix`, which ends in a dot.
  static LayerInputsWeights read(WeightSource& source, const std::string& prefix,
                                 const LayerInputsShape& shape);
};

/// Inputs of all layers, of the rows of a pass: with e the embeddings that enter the first layer,
///   p = (norm(W e / sqrt(hidden)) + sqrt(dim) * table[token]) / sqrt(2), the norm of each layer's
/// by itself. Source: Gemma 3n and Gemma 4, which call them per-layer embeddings.
class LayerInputs {
 public:
  LayerInputs(const LayerInputsShape& shape, LayerInputsWeights weights, Backend& backend,
              Buffers& buffers, std::int64_t max_rows);

  /// embeddings [rows, hidden]
  void look_up(Tensor embeddings, std::span<const std::int32_t> tokens);
  /// [rows, dim] of the last call.
  Tensor of_layer(std::int64_t layer, std::int64_t rows) const {
    return inputs_.first_rows(rows).columns(layer * shape_.dim, shape_.dim);
  }

 private:
  LayerInputsShape shape_;
  LayerInputsWeights weights_;
  Backend& backend_;
  Tensor inputs_;  // [max_rows, layers * dim]
  Tensor found_;   // the same: rows of the table
};

struct LayerInputWeights {
  Linear gate;  // [dim, hidden]
  Linear out;   // [hidden, dim]
  Join join;

  /// By Hugging Face's names behind the layer's `prefix`, which ends in a dot.
  static LayerInputWeights read(WeightSource& source, const std::string& prefix,
                                const LayerInputsShape& shape);
};

/// The end of a layer: hidden += norm(W_out (gelu(W_gate hidden) * p)), p its input.
class LayerInput {
 public:
  /// `scratch` outlives it.
  LayerInput(LayerInputWeights weights, Backend& backend, const LayerScratch& scratch);
  /// hidden [rows, hidden]; input [rows, dim]
  void add(Tensor hidden, Tensor input) const;

 private:
  LayerInputWeights weights_;
  Backend& backend_;
  const LayerScratch& scratch_;
};

}  // namespace dendrite
