#include "model/parts/weight_source.h"

#include <cmath>
#include <cstring>

#include "backend/host_matrix.h"
#include "dendrite/error.h"

namespace dendrite {
std::unique_ptr<Weight> WeightSource::matrix(const std::vector<Part>& parts, std::int64_t cols) {
  std::unique_ptr<Weight> weight;
  if (walk_ == Walk::kRandom) {
    std::int64_t rows = 0;
    for (const Part& part : parts) rows += part.rows;
    const DType number = backend_.numerics().weights.value_or(DType::kF32);
    weight = backend_.random_weight(rows, cols, number, ++seed_);
  } else {
    std::vector<HostMatrix> matrices;
    for (const Part& part : parts) {
      const TensorInfo& tensor = checkpoint_->require(part.name, {part.rows, cols});
      matrices.push_back({tensor.data, require_dtype(tensor), part.rows, cols, tensor.name,
                          std::string(tensor.file)});
    }
    if (walk_ == Walk::kCheck) return nullptr;
    weight = backend_.pack(matrices);
  }
  parameters_ += weight->rows() * weight->cols();
  size_bytes_ += weight->size_bytes();
  return weight;
}

std::unique_ptr<Buffer> WeightSource::vector(const std::vector<Part>& parts, float dummy_value) {
  std::vector<float> values;
  for (const Part& part : parts) append(part, dummy_value, values);
  if (walk_ == Walk::kCheck) return nullptr;
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
  const TensorInfo& tensor = checkpoint_->require(part.name, {part.rows});
  const DType dtype = require_dtype(tensor);
  for (std::int64_t i = 0; i < part.rows; ++i) {
    values.push_back(stored_value(tensor.data, dtype, i));
    if (!std::isfinite(values.back())) {
      throw Error(std::string(tensor.file) + ": tensor \"" + tensor.name + "\" holds " +
                  (std::isnan(values.back()) ? "NaN" : "infinity") + " at element " +
                  std::to_string(i) + "; expected finite values");
    }
  }
}

}  // namespace dendrite
