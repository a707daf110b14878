#pragma once

#include <span>

#include "backend/backend.h"
#include "backend/tensor.h"

namespace dendrite::group {

/// What ranks give each other, where their memories are. Enqueued behind what ranks were given
/// before; what they are given later waits for it.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// On every rank: out (=, or +=) (parts[0] + parts[1] + ...) + bias. So all ranks have the same
  /// bits, whatever devices they are on. outs, parts: a rank's each [rows, cols], and parts hold
  /// nothing of use afterwards; biases: a rank's each [cols] or null
  virtual void sum(std::span<const Tensor> outs, std::span<const Tensor> parts,
                   std::span<const float* const> biases, Backend::Store store) = 0;
  /// The ranks' columns beside each other. out [rows, cols], on rank 0; parts [rows, cols / ranks]
  virtual void gather(Tensor out, std::span<const Tensor> parts) = 0;
};

}  // namespace dendrite::group
