#pragma once

#include <memory>

#include "backend/pass.h"
#include "backend/tensor.h"
#include "model/parts/layer_inputs.h"

namespace dendrite {

/// What lets a row know of the rows before it.
class Mixer {
 public:
  virtual ~Mixer() = default;
  /// hidden += mixer(norm(hidden)), hidden [tokens, dim]; what it keeps of each row goes to the
  /// row's place.
  virtual void add(Tensor hidden, const PassInputs& pass) = 0;
  /// What it keeps of each row, alone.
  virtual void keep(Tensor hidden, const PassInputs& pass) = 0;
};

/// What changes every row by itself.
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  /// hidden += feed_forward(norm(hidden)), hidden [tokens, dim].
  virtual void add(Tensor hidden) = 0;
};

struct Layer {
  std::unique_ptr<Mixer> mixer;               // null: it has none
  std::unique_ptr<FeedForward> feed_forward;  // the same
  std::unique_ptr<LayerInput> input{};        // null: it has none
  float scale = 1;                            // of the stream behind it
};

}  // namespace dendrite
