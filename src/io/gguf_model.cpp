#include "io/gguf_model.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <utility>

#include "dendrite/error.h"
#include "io/gguf_config.h"
#include "io/gguf_names.h"
#include "io/gguf_tokenizer.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNumber = "split.no";
constexpr const char* kCount = "split.count";
constexpr const char* kTensorCount = "split.tensors.count";
constexpr IntRange kParts{0, 65535};

/// How the name of a part ends; parts count from 0 here.
std::string part_suffix(std::int64_t part, std::int64_t count) {
  std::array<char, 64> out;
  std::snprintf(out.data(), out.size(), "-%05lld-of-%05lld.gguf", static_cast<long long>(part + 1),
                static_cast<long long>(count));
  return out.data();
}

/// The few whose shapes are not a folder's.
void shape_as_folder(TensorInfo& tensor) {
  const bool convolves =
      tensor.name.ends_with(".conv1d.weight") || tensor.name.ends_with(".conv.conv.weight");
  if (convolves && tensor.shape.size() == 2) {
    tensor.shape.insert(tensor.shape.begin() + 1, 1);
  }
  const bool of_heads = tensor.name.ends_with(".minus_decay") || tensor.name.ends_with(".D");
  if (of_heads && tensor.shape.size() == 2 && tensor.shape[1] == 1) tensor.shape.pop_back();
  const bool of_groups =
      tensor.name.ends_with(".mamba.norm.weight") || tensor.name.ends_with(".mixer.norm.weight");
  if (of_groups && tensor.shape.size() == 2) {
    tensor.shape = {tensor.shape[0] * tensor.shape[1]};
  }
  if (tensor.name.ends_with(".shared_expert_gate.weight") && tensor.shape.size() == 1) {
    tensor.shape.insert(tensor.shape.begin(), 1);
  }
}

}  // namespace

GgufModel::GgufModel(const fs::path& path) : path_(path) {
  files_.push_back(std::make_unique<GgufFile>(path));
  open_parts();
  for (const auto& file : files_) {
    tensors_.insert(tensors_.end(), file->tensors().begin(), file->tensors().end());
  }
  std::ranges::sort(tensors_, {}, &TensorInfo::name);
  leave_out();
  config_ = gguf_config(metadata(), tensors_, warnings_);
  generation_config_ = gguf_generation_config(metadata());
  layout_ = gguf_layout(metadata());
  name_tensors();
  check_scales();
}

void GgufModel::open_parts() {
  const std::int64_t count = metadata().find_int(kCount, kParts).value_or(1);
  if (count <= 1) return;
  const std::int64_t number = metadata().require_int(kNumber, kParts);
  const std::string name = path_.filename().string();
  const std::string suffix = part_suffix(number, count);
  if (!name.ends_with(suffix)) {
    throw Error(path_.string() + ": is part " + std::to_string(number + 1) + " of " +
                std::to_string(count) + ", expected a name that ends with " + in_quotes(suffix));
  }
  const std::string prefix = name.substr(0, name.size() - suffix.size());
  if (number != 0) {
    throw Error(path_.string() + ": is part " + std::to_string(number + 1) + " of " +
                std::to_string(count) + ", expected the first, " +
                in_quotes(prefix + part_suffix(0, count)));
  }
  for (std::int64_t part = 1; part < count; ++part) {
    const auto& file = files_.emplace_back(
        std::make_unique<GgufFile>(path_.parent_path() / (prefix + part_suffix(part, count))));
    const GgufMetadata& says = file->metadata();
    if (says.require_int(kNumber, kParts) != part) says.fail(kNumber, std::to_string(part));
    if (says.require_int(kCount, kParts) != count) says.fail(kCount, std::to_string(count));
  }
  std::int64_t tensors = 0;
  for (const auto& file : files_) tensors += std::ssize(file->tensors());
  if (metadata().require_int(kTensorCount) != tensors) {
    metadata().fail(kTensorCount, std::to_string(tensors) + ", as many as the parts hold");
  }
}

/// Tensors that say nothing, and those of layers that predict further tokens, but for an MTP head
/// of one layer.
void GgufModel::leave_out() {
  std::erase_if(tensors_, [](const TensorInfo& tensor) { return says_nothing(tensor.name); });
  const auto first = gguf_further_layers(metadata());
  if (!first) return;
  const auto layer = [](const TensorInfo& tensor) { return layer_of(tensor.name).value_or(-1); };
  const bool is_head = gguf_family(metadata()).has_head &&
                       std::ranges::none_of(tensors_, [&](const TensorInfo& tensor) {
                         return layer(tensor) > *first || is_own_of_head(tensor.name);
                       });
  if (is_head) {
    further_ = *first;
    return;
  }
  const auto further =
      std::erase_if(tensors_, [&](const TensorInfo& tensor) { return layer(tensor) >= *first; });
  if (further > 0) {
    warnings_.push_back(path_.string() + ": layers from blk." + std::to_string(*first) +
                        " on predict further tokens and are not read");
  }
}

void GgufModel::name_tensors() {
  const GgufFamily& family = gguf_family(metadata());
  std::erase_if(tensors_, [&](const TensorInfo& tensor) {
    return std::ranges::find(family.said, tensor.name) != family.said.end();
  });
  for (TensorInfo& tensor : tensors_) {
    auto name = tensor_name_of(family, tensor.name, further_);
    if (!name) {
      throw Error(std::string(tensor.file) + ": tensor " + in_quotes(tensor.name) +
                  " is none that a model of architecture " + in_quotes(family.architecture) +
                  " has here, expected others");
    }
    tensor.name = *std::move(name);
    shape_as_folder(tensor);
  }
  std::ranges::sort(tensors_, {}, &TensorInfo::name);
  const auto twice = std::ranges::adjacent_find(tensors_, {}, &TensorInfo::name);
  if (twice != tensors_.end()) {
    throw Error(path_.string() + ": tensor " + in_quotes(twice->name) + " is in two parts, " +
                std::string(twice->file) + " and " + std::string((twice + 1)->file));
  }
}

void GgufModel::check_scales() const {
  for (const TensorInfo& tensor : tensors_) {
    constexpr std::string_view kScale = ".scale";
    if (!tensor.name.ends_with(kScale) || tensor.name.ends_with(".router.scale")) continue;
    const std::string of = tensor.name.substr(0, tensor.name.size() - kScale.size()) + ".weight";
    const TensorInfo* const weight = find(of);
    if (weight == nullptr || weight->stored_type != "NVFP4") {
      throw Error(std::string(tensor.file) + ": tensor " + in_quotes(tensor.name) +
                  " is a scale of " +
                  (weight == nullptr ? "none" : std::string(weight->stored_type)) +
                  ", expected one of NVFP4");
    }
  }
}

bool GgufModel::has_text(const std::string& name) const {
  if (name == "config.json" || name == "generation_config.json") return true;
  const bool of_tokenizer = name == "tokenizer.json" || name == "tokenizer_config.json";
  return of_tokenizer && has_gguf_tokenizer(metadata());
}

std::string GgufModel::text(const std::string& name, std::int64_t max_bytes) const {
  std::string out;
  if (name == "config.json") {
    out = config_;
  } else if (name == "generation_config.json") {
    out = generation_config_;
  } else if (name == "tokenizer.json" && has_text(name)) {
    out = gguf_tokenizer(metadata());
  } else if (name == "tokenizer_config.json" && has_text(name)) {
    out = gguf_tokenizer_config(metadata());
  } else {
    throw Error(path_.string() + ": says nothing that a " + name + " would, expected it to");
  }
  if (std::ssize(out) > max_bytes) {
    throw Error(path_.string() + ": says a " + name + " of " + std::to_string(out.size()) +
                " bytes, expected at most " + std::to_string(max_bytes));
  }
  return out;
}

const TensorInfo* GgufModel::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(tensors_, name, {}, &TensorInfo::name);
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

std::vector<std::string_view> GgufModel::names() const {
  std::vector<std::string_view> out;
  out.reserve(tensors_.size());
  for (const TensorInfo& tensor : tensors_) out.emplace_back(tensor.name);
  return out;
}

std::int64_t GgufModel::total_bytes() const {
  std::int64_t total = 0;
  for (const TensorInfo& tensor : tensors_) total += tensor.size_bytes;
  return total;
}

void GgufModel::prefetch(int threads) const {
  std::vector<const MappedFile*> files;
  for (const auto& file : files_) files.push_back(&file->file());
  read_ahead(files, threads);
}

const StoredMatrix& GgufModel::in_order(std::string_view name, const StoredMatrix& stored) const {
  const std::lock_guard lock(ordered_mutex_);
  const auto known = ordered_.find(name);
  if (known != ordered_.end()) return known->second.matrix();
  const auto made = ordered_.try_emplace(std::string(name), stored, layout_).first;
  return made->second.matrix();
}

std::vector<StoredMatrix> GgufModel::stacked(std::string_view name, std::int64_t rows,
                                             std::int64_t cols) const {
  const StoredMatrix whole = matrix(name, rows, cols);
  if (layout_.has_columns_in_turns(name)) return {in_order(name, whole)};
  const std::vector<RowRun> runs = row_runs(layout_, name, rows, path_.native());
  if (runs.empty()) return {whole};
  std::vector<StoredMatrix> out;
  for (const RowRun& run : runs) {
    StoredMatrix& part = out.emplace_back(whole);
    part.data = whole.row(run.first);
    part.rows = run.count;
    part.stride = run.step * whole.stride;
  }
  return out;
}

std::vector<float> GgufModel::values(std::string_view name,
                                     std::span<const std::int64_t> shape) const {
  std::vector<float> stored = Checkpoint::values(name, shape);
  if (layout_.adds_one(name)) {
    for (float& weight : stored) weight -= 1;
  }
  if (shape.empty()) return stored;
  const std::vector<RowRun> runs = row_runs(layout_, name, shape[0], path_.native());
  if (runs.empty()) return stored;
  const std::int64_t width = value_count(shape.subspan(1));
  std::vector<float> out;
  out.reserve(stored.size());
  for (const RowRun& run : runs) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const auto row = stored.begin() + (run.first + i * run.step) * width;
      out.insert(out.end(), row, row + width);
    }
  }
  return out;
}

}  // namespace dendrite
