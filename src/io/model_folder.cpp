#include "io/model_folder.h"

#include <algorithm>
#include <map>
#include <set>
#include <system_error>

#include "dendrite/error.h"
#include "io/json_file.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr JsonLimits kIndexLimits{.max_bytes = 64 << 20, .max_values = 1 << 20, .max_depth = 16};
constexpr std::size_t kMaxTensors = std::size_t{1} << 20;  // over all shards

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);  // follows links
}

/// One line more for what is missing from a snapshot of the cache.
std::string download_hint(const ModelLocation& location, const std::string& file) {
  if (location.id.empty()) return "";
  if (known_absent(location, file))
    return "\n(the repository " + location.id + " has no such file)";
  return "\nan incomplete download? to complete it: " + download_command(location);
}

/// Says what kind of weights a folder without safetensors holds, for a message.
std::string other_weights(const fs::path& folder) {
  std::error_code error;
  std::set<std::string> seen;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string extension = it->path().extension().string();
    if (extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".gguf" ||
        extension == ".safetensors") {
      seen.insert("*" + extension);
    }
  }
  std::string out;
  for (const std::string& extension : seen) out += (out.empty() ? "" : ", ") + extension;
  return out;
}

/// The tensors that an index puts in each shard. A shard is a file of the same folder: a hostile
/// index must not reach outside it.
std::map<std::string, std::vector<std::string>> read_index(const fs::path& index) {
  const auto document = JsonDocument::read(index, kIndexLimits, DuplicateKeys::kRefuse);
  const JsonObject places = document.root().require_object("weight_map");
  std::map<std::string, std::vector<std::string>> shards;
  for (const std::string_view tensor : places.keys()) {
    const std::string shard = places.require_string(tensor);
    if (shard.find('/') != std::string::npos || !shard.ends_with(".safetensors")) {
      throw Error(index.string() + ": puts tensor " + in_quotes(tensor) + " in " +
                  in_quotes(shard) +
                  ", expected the name of a .safetensors file of the same folder");
    }
    shards[shard].emplace_back(tensor);
  }
  if (shards.empty()) {
    throw Error(index.string() + ": key \"weight_map\" is empty, expected tensors");
  }
  return shards;
}

}  // namespace

ModelFolder ModelFolder::open(const std::string& name, Weights weights) {
  ModelFolder folder(resolve_model(name));
  if (weights == Weights::kOpen) folder.open_weights();
  return folder;
}

bool ModelFolder::has_weights() const {
  return has_file(kSingleFile) || has_file(kIndexFile);
}

bool ModelFolder::has_file(const std::string& name) const {
  return is_file(path() / name);
}

fs::path ModelFolder::require_file(const std::string& name) const {
  const fs::path file = path() / name;
  if (is_file(file)) return file;
  std::error_code ignored;
  const bool dangling = fs::is_symlink(file, ignored);
  throw Error(file.string() +
              (dangling ? ": is a link to a file that is missing" : ": no such file") +
              download_hint(location_, name));
}

std::string ModelFolder::text(const std::string& name, std::int64_t max_bytes) const {
  return read_text(require_file(name), max_bytes);
}

void ModelFolder::open_weights() {
  const bool single = has_file(kSingleFile);
  if (has_file(kIndexFile)) {
    open_indexed(path() / kIndexFile);
  } else if (single) {
    files_.push_back(std::make_unique<SafetensorsFile>(path() / kSingleFile));
  } else {
    const std::string others = other_weights(path());
    throw Error(path().string() + ": has no " + kSingleFile + " and no " + kIndexFile +
                (others.empty()
                     ? ""
                     : "; it holds weights only as " + others + ", which " +
                           (others == "*.safetensors" ? "need the index"
                            : others == "*.gguf"      ? "are models of their own: name the file"
                                                      : "are not read")) +
                download_hint(location_, kSingleFile));
  }
  sort_tensors();
}

void ModelFolder::open_indexed(const fs::path& index) {
  const auto shards = read_index(index);
  std::size_t tensors = 0;
  for (const auto& [shard, names] : shards) {
    if (!has_file(shard) && has_file(kSingleFile)) {  // left behind by an earlier save
      location_.warnings.push_back(index.string() + " names " + in_quotes(shard) +
                                   ", which is missing; using " + kSingleFile);
      files_.clear();
      files_.push_back(std::make_unique<SafetensorsFile>(path() / kSingleFile));
      return;
    }
    if (!has_file(shard)) {
      throw Error((path() / shard).string() + ": is missing, a shard that " + kIndexFile +
                  " names (for " + std::to_string(names.size()) + " tensors)" +
                  download_hint(location_, shard));
    }
    const auto& file = files_.emplace_back(std::make_unique<SafetensorsFile>(path() / shard));
    tensors += file->tensors().size();
    if (tensors > kMaxTensors) {
      throw Error(file->path() + ": brings the folder to more than " + std::to_string(kMaxTensors) +
                  " tensors");
    }
    for (const std::string& name : names) {
      if (file->find(name) == nullptr) {
        throw Error(file->path() + ": holds no tensor " + in_quotes(name) + ", which " +
                    kIndexFile + " puts there");
      }
    }
  }
}

void ModelFolder::sort_tensors() {
  for (const auto& file : files_) {
    for (const TensorInfo& tensor : file->tensors()) tensors_.push_back(&tensor);
  }
  std::ranges::sort(tensors_, {}, &TensorInfo::name);
  const auto twice = std::ranges::adjacent_find(tensors_, {}, &TensorInfo::name);
  if (twice != tensors_.end()) {
    throw Error(path().string() + ": tensor " + in_quotes((*twice)->name) + " is in two shards, " +
                fs::path((*twice)->file).filename().string() + " and " +
                fs::path((*(twice + 1))->file).filename().string());
  }
}

const TensorInfo* ModelFolder::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(tensors_, name, {}, &TensorInfo::name);
  return it != tensors_.end() && (*it)->name == name ? *it : nullptr;
}

std::string ModelFolder::tensors_path() const {
  return files_.size() == 1 ? files_.front()->path() : path().string();
}

std::vector<std::string_view> ModelFolder::names() const {
  std::vector<std::string_view> out;
  out.reserve(tensors_.size());
  for (const TensorInfo* tensor : tensors_) out.emplace_back(tensor->name);
  return out;
}

std::int64_t ModelFolder::total_bytes() const {
  std::int64_t total = 0;
  for (const TensorInfo* tensor : tensors_) total += tensor->size_bytes;
  return total;
}

void ModelFolder::prefetch(int threads) const {
  std::vector<const MappedFile*> files;
  for (const auto& file : files_) files.push_back(&file->file());
  read_ahead(files, threads);
}

}  // namespace dendrite
