#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dendrite/compatibility.h"
#include "quant/format.h"

namespace dendrite {

/// The norm weights around a product.
struct NormsAround {
  std::vector<float> before;  // [cols]
  /// [head_dim], of the queries and keys that it gives; or none.
  std::vector<float> q{}, k{};
  std::int64_t rotary_dim = 0;  // of their head_dim
};

/// How a product bears inputs that are rounded by groups: see Compatibility, of one product.
struct ProductFit {
  double score = 1;
  double largest = 1;

  Compatibility::Verdict verdict() const;
};

/// Of matrices [any, cols] behind one norm. Reads at most 64 rows of each. The same numbers on
/// every machine.
///
/// The score is a product of two. In front: rows of nearly normal numbers are normed by `before`
/// and by even weights, and rounded as products of groups do it; errors and sums are weighed by the
/// squares of the matrices' columns, so a large norm weight whose column is small counts as what it
/// is, the loss of its neighbours. Behind: what q and k make of an error, sqrt(mean(s^2)) of the
/// weights s with which a dim adds to an attention score, over mean(s), which even weights of the
/// same sum would make of it. RoPE turns pairs of dims into one another, so both have the root of
/// their mean square.
ProductFit fit_of(const NormsAround& norms, std::span<const StoredMatrix> parts);

/// Counts a product; `unrounded`: it falls back for this.
void add(Compatibility& all, const ProductFit& fit, const std::string& product, bool unrounded);

/// For who loaded a model whose packed products were judged; "" where all are compatible.
std::string warning_of(const Compatibility& all);

}  // namespace dendrite
