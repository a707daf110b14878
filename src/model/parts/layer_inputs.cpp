#include "model/parts/layer_inputs.h"

#include <cmath>
#include <utility>

#include "model/parts/norm.h"

namespace dendrite {

LayerInputsWeights LayerInputsWeights::read(WeightSource& source, const std::string& prefix,
                                            const LayerInputsShape& s) {
  const std::int64_t columns = s.layers * s.dim;
  LayerInputsWeights weights;
  weights.table = source.matrix({{prefix + "embed_tokens_per_layer.weight", s.vocab}}, columns);
  weights.projection.weight =
      source.matrix({{prefix + "per_layer_model_projection.weight", columns}}, s.hidden);
  weights.norm = read_norm(source, prefix, "per_layer_projection_norm", s.dim, s.norm_eps, false);
  return weights;
}

LayerInputs::LayerInputs(const LayerInputsShape& shape, LayerInputsWeights weights,
                         Backend& backend, Buffers& buffers, std::int64_t max_rows)
    : shape_(shape),
      weights_(std::move(weights)),
      backend_(backend),
      inputs_(buffers.make(max_rows, shape.layers * shape.dim)),
      found_(buffers.make(max_rows, shape.layers * shape.dim)) {}

void LayerInputs::look_up(Tensor embeddings, std::span<const std::int32_t> tokens) {
  const std::int64_t rows = embeddings.rows;
  const Tensor inputs = inputs_.first_rows(rows);
  const Tensor found = found_.first_rows(rows);
  Product product = weights_.projection.product({});
  Norm{}.before(product, embeddings);
  product.out = inputs;
  backend_.product(product);
  backend_.scale(inputs, 1.0F / std::sqrt(static_cast<float>(shape_.hidden)), 0);
  const Tensor by_layer{inputs.data, rows * shape_.layers, shape_.dim, shape_.dim};
  backend_.rms_norm(by_layer, by_layer, weights_.norm.weight->data(), weights_.norm.eps);

  backend_.embed(found, tokens, *weights_.table);
  const float half = std::sqrt(0.5F);
  backend_.scale(inputs, half, 0);
  backend_.add_normed(inputs, found, nullptr, 0, half * std::sqrt(static_cast<float>(shape_.dim)));
}

LayerInputWeights LayerInputWeights::read(WeightSource& source, const std::string& prefix,
                                          const LayerInputsShape& s) {
  LayerInputWeights weights;
  weights.gate.weight = source.matrix({{prefix + "per_layer_input_gate.weight", s.dim}}, s.hidden);
  weights.out.weight = source.matrix({{prefix + "per_layer_projection.weight", s.hidden}}, s.dim);
  weights.join.norm =
      read_norm(source, prefix, "post_per_layer_input_norm", s.hidden, s.norm_eps, false);
  return weights;
}

LayerInput::LayerInput(LayerInputWeights weights, Backend& backend, const LayerScratch& scratch)
    : weights_(std::move(weights)), backend_(backend), scratch_(scratch) {}

void LayerInput::add(Tensor hidden, Tensor input) const {
  const std::int64_t rows = hidden.rows;
  const std::int64_t dim = input.cols;
  const Tensor gate_input = packed(scratch_.gate_up, rows, 2 * dim);
  const Tensor act = packed(scratch_.act, rows, dim);
  Product gate = weights_.gate.product({});
  Norm{}.before(gate, hidden);
  gate.out = gate_input.columns(0, dim);
  backend_.product(gate);
  backend_.copy(gate_input.columns(dim, dim), input);
  backend_.activate(act, gate_input, {.kind = Activation::Kind::kGelu});
  Product out = weights_.out.product(Rows(act));
  weights_.join.add(out, hidden, scratch_.normed.first_rows(rows), backend_);
}

}  // namespace dendrite
