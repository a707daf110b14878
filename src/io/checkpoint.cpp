#include "io/checkpoint.h"

#include "dendrite/error.h"
#include "io/json_file.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// A tensor [count, rows, cols] as [count * rows, cols]. What a format looks for beside it would be
/// of another shape, so there may be none.
class AsOneMatrix final : public TensorSource {
 public:
  AsOneMatrix(const TensorSource& all, const TensorInfo& tensor) : all_(all), tensor_(tensor) {
    tensor_.shape = {tensor.shape[0] * tensor.shape[1], tensor.shape[2]};
  }
  const TensorInfo* find(std::string_view name) const override {
    if (name == tensor_.name) return &tensor_;
    if (const TensorInfo* const beside = all_.find(name)) {
      throw Error(std::string(beside->file) + ": tensor " + in_quotes(name) + " stands beside " +
                  in_quotes(tensor_.name) +
                  ", which holds several matrices; expected it to go without");
    }
    return nullptr;
  }

 private:
  const TensorSource& all_;
  TensorInfo tensor_;
};

}  // namespace

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

StoredMatrix Checkpoint::slice(std::string_view name, const Slice& slice, std::int64_t rows,
                               std::int64_t cols) const {
  const TensorInfo& tensor = require(name, {slice.count, rows, cols});
  const AsOneMatrix source(*this, tensor);
  const auto all = find_matrix(source, name, slice.count * rows, cols);
  if (!all) throw_stored_type(tensor);
  StoredMatrix one = *all;
  one.data = all->row(slice.index * rows);
  one.rows = rows;
  one.name = tensor.name;
  return one;
}

std::vector<float> Checkpoint::values(std::string_view name,
                                      std::span<const std::int64_t> shape) const {
  return numbers_of(require(name, shape));
}

}  // namespace dendrite
