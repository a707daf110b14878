#include "io/gguf_model.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>

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

}  // namespace

GgufModel::GgufModel(const fs::path& path) : path_(path) {
  files_.push_back(std::make_unique<GgufFile>(path));
  open_parts();
  const GgufFamily& family = gguf_family(metadata());
  std::vector<TensorInfo> all;
  for (const auto& file : files_) {
    all.insert(all.end(), file->tensors().begin(), file->tensors().end());
  }
  std::ranges::sort(all, {}, &TensorInfo::name);
  config_ = gguf_config(metadata(), all, warnings_);
  generation_config_ = gguf_generation_config(metadata());
  head_dim_ = gguf_head_dim(metadata());
  paired_ = family.paired;
  tensors_ = std::move(all);
  name_tensors();
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

void GgufModel::name_tensors() {
  std::erase_if(tensors_, [](const TensorInfo& tensor) { return says_nothing(tensor.name); });
  for (TensorInfo& tensor : tensors_) {
    auto name = tensor_name_of(tensor.name);
    if (!name) {
      throw Error(std::string(tensor.file) + ": tensor " + in_quotes(tensor.name) +
                  " is none that a model of architecture " +
                  in_quotes(metadata().require_string("general.architecture")) +
                  " has here, expected others");
    }
    tensor.name = *std::move(name);
  }
  std::ranges::sort(tensors_, {}, &TensorInfo::name);
  const auto twice = std::ranges::adjacent_find(tensors_, {}, &TensorInfo::name);
  if (twice != tensors_.end()) {
    throw Error(path_.string() + ": tensor " + in_quotes(twice->name) + " is in two parts, " +
                std::string(twice->file) + " and " + std::string((twice + 1)->file));
  }
  for (const TensorInfo& tensor : tensors_) {
    constexpr std::string_view kScale = ".scale";
    if (!tensor.name.ends_with(kScale)) continue;
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

bool GgufModel::is_paired(std::string_view name) const {
  const auto last = name.rfind('.');
  const std::string_view of = name.substr(0, std::min(last, name.size()));
  return paired_ && (of.ends_with(".q_proj") || of.ends_with(".k_proj"));
}

void GgufModel::check_heads(std::string_view name, std::int64_t rows) const {
  if (head_dim_ >= 2 && head_dim_ % 2 == 0 && rows % head_dim_ == 0) return;
  throw Error(path_.string() + ": tensor " + in_quotes(name) + " has " + std::to_string(rows) +
              " rows, expected whole heads of an even number, got " + std::to_string(head_dim_));
}

std::vector<StoredMatrix> GgufModel::stacked(std::string_view name, std::int64_t rows,
                                             std::int64_t cols) const {
  const StoredMatrix whole = matrix(name, rows, cols);
  if (!is_paired(name)) return {whole};
  check_heads(name, rows);
  std::vector<StoredMatrix> out;
  for (std::int64_t head = 0; head < rows; head += head_dim_) {
    for (std::int64_t half = 0; half < 2; ++half) {
      StoredMatrix part = whole;
      part.data = whole.row(head + half);
      part.rows = head_dim_ / 2;
      part.stride = 2 * whole.stride;
      out.push_back(part);
    }
  }
  return out;
}

std::vector<float> GgufModel::values(std::string_view name,
                                     std::span<const std::int64_t> shape) const {
  std::vector<float> stored = Checkpoint::values(name, shape);
  if (!is_paired(name)) return stored;
  check_heads(name, std::ssize(stored));
  std::vector<float> out;
  out.reserve(stored.size());
  const auto head_dim = static_cast<std::size_t>(head_dim_);
  for (std::size_t head = 0; head < stored.size(); head += head_dim) {
    for (std::size_t half = 0; half < 2; ++half) {
      for (std::size_t i = half; i < head_dim; i += 2) out.push_back(stored[head + i]);
    }
  }
  return out;
}

}  // namespace dendrite
