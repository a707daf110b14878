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

/// An RMSNorm, or none.
struct Norm {
  std::unique_ptr<Buffer> weight;  // [dim]; null: there is none
  float eps = 0;

  /// Puts the norm of rows of x before a product; without a norm the product takes x itself.
  void before(Product& product, Tensor x) const {
    if (weight == nullptr) {
      product.in = {x.data, RowFormat::kF32, x.rows, x.cols, x.stride};
      return;
    }
    product.x = x;
    product.norm = weight->data();
    product.norm_eps = eps;
  }
};

/// How what a part gives joins the residual stream: hidden += factor * norm(y).
struct Join {
  Norm norm;
  float factor = 1;

  bool is_sum() const { return norm.weight == nullptr && factor == 1; }
  /// product: the part's last, but for where it goes. scratch [tokens, dim]
  void add(Product& product, Tensor hidden, Tensor scratch, Backend& backend) const {
    if (is_sum()) {
      product.epilogue = Epilogue::kAdd;
      product.out = hidden;
      backend.product(product);
      return;
    }
    product.out = scratch;
    backend.product(product);
    backend.add_normed(hidden, scratch, data_or_null(norm.weight), norm.eps, factor);
  }
};

}  // namespace dendrite
