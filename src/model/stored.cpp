#include "model/stored.h"

#include <algorithm>
#include <memory>
#include <set>

#include "backend/backend.h"
#include "model/loader.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// A checkpoint that notes what is looked for in it. Its vectors are ones.
class Recorder final : public Checkpoint {
 public:
  explicit Recorder(const Checkpoint& files) : files_(files) {}

  const std::filesystem::path& path() const override { return files_.path(); }
  bool has_text(const std::string& name) const override { return files_.has_text(name); }
  std::string text(const std::string& name, std::int64_t max_bytes) const override {
    return files_.text(name, max_bytes);
  }
  const TensorInfo* find(std::string_view name) const override {
    const TensorInfo* const tensor = files_.find(name);
    if (tensor != nullptr && std::ranges::find(seen_, tensor) == seen_.end()) {
      seen_.push_back(tensor);
    }
    return tensor;
  }
  std::vector<std::string_view> names() const override { return files_.names(); }
  std::int64_t total_bytes() const override { return files_.total_bytes(); }
  void prefetch(int) const override {}
  const std::vector<std::string>& warnings() const override { return files_.warnings(); }

  std::vector<StoredMatrix> stacked(std::string_view name, std::int64_t rows,
                                    std::int64_t cols) const override {
    seen_.clear();
    const StoredMatrix found = matrix(name, rows, cols);
    if (is_new(name)) add(*found.format, rows * cols);
    return {found};
  }
  StoredMatrix slice(std::string_view name, const Slice& slice, std::int64_t rows,
                     std::int64_t cols) const override {
    seen_.clear();
    const StoredMatrix found = Checkpoint::slice(name, slice, rows, cols);
    if (slice.index > 0) seen_.clear();  // the tensor has been counted
    add(*found.format, rows * cols, slice.index == 0 ? 1 : 0);
    return found;
  }
  std::vector<float> values(std::string_view name,
                            std::span<const std::int64_t> shape) const override {
    seen_.clear();
    const std::int64_t count = value_count(shape);
    const PlainFormat& format = require_plain(require(name, shape));
    if (is_new(name)) add(format, count);
    return std::vector<float>(static_cast<std::size_t>(count), 1.0F);
  }

  std::vector<StoredWeights> take() {
    std::ranges::stable_sort(stored_, std::greater<>(), &StoredWeights::bytes);
    return std::move(stored_);
  }

 private:
  /// Parts of layers may read parts of one tensor.
  bool is_new(std::string_view name) const { return counted_.emplace(name).second; }
  std::string tensors_path() const override { return files_.path().string(); }
  void add(const Format& format, std::int64_t parameters, std::int64_t tensors = 1) const {
    auto place = std::ranges::find(stored_, format.name(), &StoredWeights::format);
    if (place == stored_.end()) {
      stored_.push_back({.format = std::string(format.name())});
      place = stored_.end() - 1;
    }
    place->tensors += tensors;
    place->parameters += parameters;
    for (const TensorInfo* tensor : seen_) place->bytes += tensor->size_bytes;
  }

  const Checkpoint& files_;
  mutable std::vector<const TensorInfo*> seen_;  // of the weight that is looked for now
  mutable std::vector<StoredWeights> stored_;
  mutable std::set<std::string> counted_;
};

}  // namespace

std::vector<StoredWeights> stored_weights_of(const Checkpoint& checkpoint) {
  if (checkpoint.names().empty()) return {};
  Recorder recorder(checkpoint);
  const auto nothing_is_computed = make_cpu_backend(Numerics::kF32, 1);
  make_loader(recorder)->check(*nothing_is_computed);
  return recorder.take();
}

}  // namespace dendrite
