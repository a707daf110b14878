#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace dendrite {

/// The texts that go with a model's weights, by the names that they have as files of a folder
/// ("tokenizer.json"), wherever they come from.
class ModelTexts {
 public:
  /// The whole text of a name, or nothing if there is none. Throws Error when it can't be read.
  using Read = std::function<std::optional<std::string>(const std::string& name)>;

  /// The files of a folder.
  ModelTexts(std::filesystem::path folder);  // NOLINT: a folder is what they mostly are
  /// `path`: what messages call the folder.
  ModelTexts(std::filesystem::path path, Read read);

  const std::filesystem::path& path() const { return path_; }
  std::optional<std::string> read(const std::string& name) const { return read_(name); }

 private:
  std::filesystem::path path_;
  Read read_;
};

/// The whole file, or nothing if there is none. Error: it exists but cannot be read.
std::optional<std::string> read_text_file(const std::filesystem::path& path);

}  // namespace dendrite
