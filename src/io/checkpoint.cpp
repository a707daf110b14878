#include "io/checkpoint.h"

#include <algorithm>

#include "dendrite/error.h"
#include "io/json_file.h"

namespace dendrite {

const TensorInfo& Checkpoint::require(std::string_view name,
                                      std::span<const std::int64_t> shape) const {
  const TensorInfo* const tensor = find(name);
  if (tensor == nullptr) {
    throw Error(tensors_path() + ": holds no tensor " + in_quotes(name) +
                ", expected one of shape " + shape_text(shape) + " (it holds " +
                std::to_string(names().size()) + " others)");
  }
  if (!std::ranges::equal(tensor->shape, shape)) {
    throw Error(std::string(tensor->file) + ": tensor " + in_quotes(name) + " has shape " +
                shape_text(tensor->shape) + ", expected " + shape_text(shape) +
                " (as config.json says)");
  }
  return *tensor;
}

}  // namespace dendrite
