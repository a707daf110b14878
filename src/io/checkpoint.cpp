#include "io/checkpoint.h"

#include "dendrite/error.h"
#include "io/json_file.h"
#include "quant/formats.h"

namespace dendrite {

const TensorInfo& Checkpoint::require(std::string_view name,
                                      std::span<const std::int64_t> shape) const {
  const TensorInfo* const tensor = find(name);
  if (tensor == nullptr) {
    throw Error(tensors_path() + ": holds no tensor " + in_quotes(name) +
                ", expected one of shape " + shape_text(shape) + " (it holds " +
                std::to_string(names().size()) + " others)");
  }
  check_shape(*tensor, shape);
  return *tensor;
}

StoredMatrix Checkpoint::matrix(std::string_view name, std::int64_t rows, std::int64_t cols) const {
  if (const auto found = find_matrix(*this, name, rows, cols)) return *found;
  throw_stored_type(require(name, {rows, cols}));
}

std::vector<StoredMatrix> Checkpoint::stacked(std::string_view name, std::int64_t rows,
                                              std::int64_t cols) const {
  return {matrix(name, rows, cols)};
}

std::vector<float> Checkpoint::values(std::string_view name,
                                      std::span<const std::int64_t> shape) const {
  return numbers_of(require(name, shape));
}

}  // namespace dendrite
