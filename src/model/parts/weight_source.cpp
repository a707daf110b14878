#include "model/parts/weight_source.h"

#include <algorithm>
#include <cmath>

#include "backend/product_fit.h"
#include "backend/rounding.h"
#include "dendrite/error.h"

namespace dendrite {
namespace {

/// Embeddings and the output matrix are left as they are: few bits cost most there.
bool may_be_rounded(const std::string& name) {
  return name.starts_with("model.layers.");
}

}  // namespace

std::unique_ptr<Weight> WeightSource::matrix(const std::vector<Part>& parts, std::int64_t cols,
                                             const NormNames& norms) {
  std::unique_ptr<Weight> weight;
  const bool rounds =
      backend_.numerics().rounding != WeightRounding::kNone && may_be_rounded(parts.front().name);
  if (walk_ == Walk::kRandom) {
    std::int64_t rows = 0;
    for (const Part& part : parts) rows += part.rows;
    const DType number = backend_.numerics().weights.value_or(DType::kF32);
    weight = rounds ? random_rounded_weight(backend_, rows, cols, ++seed_)
                    : backend_.random_weight(rows, cols, number, ++seed_);
  } else {
    std::vector<StoredMatrix> matrices;
    for (const Part& part : parts) {
      const auto stored = checkpoint_->stacked(part.name, part.rows, cols);
      for (const StoredMatrix& one : stored) {
        matrices.push_back(rounds ? rounded(one, backend_.numerics()) : one);
      }
    }
    if (walk_ != Walk::kCheck && !norms.before.empty()) judge(matrices, norms);
    if (walk_ != Walk::kRead) return nullptr;
    weight = backend_.pack(matrices);
  }
  parameters_ += weight->rows() * weight->cols();
  size_bytes_ += weight->size_bytes();
  return weight;
}

void WeightSource::judge(std::vector<StoredMatrix>& matrices, const NormNames& norms) {
  const bool rounds = std::ranges::any_of(
      matrices, [&](const StoredMatrix& matrix) { return backend_.rounds_inputs(matrix); });
  if (!rounds && walk_ != Walk::kJudge) return;
  NormsAround around{checkpoint_->vector(norms.before, matrices.front().cols)};
  if (!norms.q.empty()) {
    around.q = checkpoint_->vector(norms.q, norms.head_dim);
    around.k = checkpoint_->vector(norms.k, norms.head_dim);
    around.rotary_dim = norms.rotary_dim;
  }
  const ProductFit fit = fit_of(around, matrices);
  const bool falls_back = rounds && fit.verdict() == Compatibility::Verdict::kIncompatible;
  add(compatibility_, fit, std::string(matrices.front().name), falls_back);
  for (StoredMatrix& matrix : matrices) matrix.as_plain = falls_back;
}

std::unique_ptr<Buffer> WeightSource::vector(const std::vector<Part>& parts, float dummy_value) {
  std::vector<float> values;
  for (const Part& part : parts) append(part, dummy_value, values);
  if (walk_ == Walk::kCheck || walk_ == Walk::kJudge) return nullptr;
  auto buffer = backend_.make_buffer(static_cast<std::int64_t>(values.size()));
  backend_.upload(buffer->data(), values);
  parameters_ += buffer->count();
  size_bytes_ += buffer->count() * 4;
  return buffer;
}

void WeightSource::append(const Part& part, float dummy_value, std::vector<float>& values) const {
  if (walk_ == Walk::kRandom) {
    values.insert(values.end(), static_cast<std::size_t>(part.rows), dummy_value);
    return;
  }
  const std::vector<float> stored = checkpoint_->vector(part.name, part.rows);
  const auto odd =
      std::ranges::find_if_not(stored, [](float value) { return std::isfinite(value); });
  if (odd != stored.end()) {
    throw Error(std::string(checkpoint_->find(part.name)->file) + ": tensor \"" + part.name +
                "\" holds " + (std::isnan(*odd) ? "NaN" : "infinity") + " at element " +
                std::to_string(odd - stored.begin()) + "; expected finite values");
  }
  values.insert(values.end(), stored.begin(), stored.end());
}

}  // namespace dendrite
