#include "io/checkpoint.h"

#include <utility>

#include "dendrite/error.h"
#include "io/json_file.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// One of a tensor's slices, of this shape.
void cut(TensorInfo& tensor, const Slice& slice, std::vector<std::int64_t> shape) {
  tensor.shape = std::move(shape);
  tensor.size_bytes /= slice.count;
  tensor.data += slice.index * tensor.size_bytes;
}

/// A tensor [count, rows, cols] as [count * rows, cols]. Beside one of NVFP4 there may be a number
/// for each matrix, of which a format finds that of the slice; what others look for beside theirs
/// would be of another shape, so there may be none.
class AsOneMatrix final : public TensorSource {
 public:
  AsOneMatrix(const TensorSource& all, const TensorInfo& tensor, const Slice& slice)
      : all_(all), tensor_(tensor), slice_(slice) {
    tensor_.shape = {tensor.shape[0] * tensor.shape[1], tensor.shape[2]};
  }
  const TensorInfo* find(std::string_view name) const override {
    if (name == tensor_.name) return &tensor_;
    const TensorInfo* const beside = all_.find(name);
    if (beside == nullptr) return nullptr;
    if (tensor_.stored_type == "NVFP4") {
      check_shape(*beside, {&slice_.count, 1}, "of " + in_quotes(tensor_.name));
      number_ = *beside;
      cut(number_, slice_, {1});
      return &number_;
    }
    throw Error(std::string(beside->file) + ": tensor " + in_quotes(name) + " stands beside " +
                in_quotes(tensor_.name) +
                ", which holds several matrices; expected it to go without");
  }

 private:
  const TensorSource& all_;
  TensorInfo tensor_;
  Slice slice_;
  mutable TensorInfo number_;
};

/// One of the matrices that gpt-oss holds in E2M1: "x_blocks" [count, rows, cols / 32, 16], and the
/// exponents of these, "x_scales" [count, rows, cols / 32]; under the names that a matrix alone
/// has.
class OfBlocks final : public TensorSource {
 public:
  OfBlocks(const Checkpoint& all, const std::string& name, const Slice& slice, std::int64_t rows,
           std::int64_t cols)
      : blocks_(all.require(name + "_blocks", {slice.count, rows, cols / 32, 16})),
        scales_(all.require(name + "_scales", {slice.count, rows, cols / 32})) {
    cut(blocks_, slice, {rows, cols / 2});
    cut(scales_, slice, {rows, cols / 32});
  }
  static constexpr const char* kName = "weight";
  const TensorInfo* find(std::string_view name) const override {
    if (name == "weight_packed") return &blocks_;
    return name == "weight_scale" ? &scales_ : nullptr;
  }

 private:
  TensorInfo blocks_;
  TensorInfo scales_;
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
  const std::string blocks = std::string(name) + "_blocks";
  if (const TensorInfo* const packed = find(blocks); packed != nullptr && find(name) == nullptr) {
    const OfBlocks source(*this, std::string(name), slice, rows, cols);
    auto one = find_matrix(source, OfBlocks::kName, rows, cols);
    if (!one) throw_stored_type(*packed);
    one->name = packed->name;
    return *one;
  }
  const TensorInfo& tensor = require(name, {slice.count, rows, cols});
  const AsOneMatrix source(*this, tensor, slice);
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
