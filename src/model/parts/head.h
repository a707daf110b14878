#pragma once

#include <cstdint>
#include <span>

#include "model/parts/linear.h"

namespace dendrite {

/// Logits of the rows that want them: the final norm and the output matrix.
class Head {
 public:
  /// What becomes of logits: see Backend::scale.
  struct Scale {
    float factor = 1;
    float cap = 0;
  };
  /// output [vocab, dim] outlives it, and so do rows [max_rows, dim] (scratch) and logits
  /// [max_rows, vocab].
  Head(const Norm& norm, const Weight& output, Backend& backend, Tensor rows, Tensor logits,
       const Scale& scale = {1, 0})
      : norm_(norm),
        output_(output),
        backend_(backend),
        rows_(rows),
        logits_(logits),
        scale_(scale) {}

  /// logits(wanted.size())[i] = W * norm(hidden[wanted[i]])
  void run(Tensor hidden, std::span<const std::int32_t> wanted) const {
    const auto count = static_cast<std::int64_t>(wanted.size());
    if (count == 0) return;
    Product product;
    product.weight = &output_;
    product.in = output_.input(rows_.first_rows(count));
    norm_.before(product, hidden);
    product.gather = wanted;
    product.out = logits(count);
    backend_.product(product);
    if (scale_.factor != 1 || scale_.cap > 0) {
      backend_.scale(product.out, scale_.factor, scale_.cap);
    }
  }
  Tensor logits(std::int64_t count) const { return logits_.first_rows(count); }

 private:
  const Norm& norm_;
  const Weight& output_;
  Backend& backend_;
  Tensor rows_;
  Tensor logits_;
  Scale scale_;
};

}  // namespace dendrite
