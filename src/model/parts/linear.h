#pragma once

#include <memory>

#include "backend/backend.h"

namespace dendrite {

inline const float* data_or_null(const std::unique_ptr<Buffer>& buffer) {
  return buffer ? buffer->data() : nullptr;
}

/// A weight [rows, cols] with its bias [rows], or none: x * W^T + bias.
struct Linear {
  std::unique_ptr<Weight> weight;
  std::unique_ptr<Buffer> bias;

  Rows input(Tensor scratch) const { return weight->input(scratch); }
  /// For Backend::product, but for what is joined to it and where it goes.
  Product product(Rows in) const {
    Product product;
    product.weight = weight.get();
    product.bias = data_or_null(bias);
    product.in = in;
    return product;
  }
};

/// An RMSNorm.
struct Norm {
  std::unique_ptr<Buffer> weight;  // [dim]
  float eps = 0;

  /// Puts the norm of rows of x before a product.
  void before(Product& product, Tensor x) const {
    product.x = x;
    product.norm = weight->data();
    product.norm_eps = eps;
  }
};

}  // namespace dendrite
