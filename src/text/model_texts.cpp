#include "text/model_texts.h"

#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "dendrite/error.h"

namespace dendrite {

namespace fs = std::filesystem;

std::optional<std::string> read_text_file(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  if (fs::is_directory(path, ignored)) {
    throw Error(path.string() + ": got a directory, expected a file");
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (in.bad() || !in.is_open()) throw Error(path.string() + ": cannot be read");
  return std::move(text).str();
}

ModelTexts::ModelTexts(fs::path folder)
    : path_(std::move(folder)),
      read_([folder = path_](const std::string& name) { return read_text_file(folder / name); }) {}

ModelTexts::ModelTexts(fs::path path, Read read) : path_(std::move(path)), read_(std::move(read)) {}

}  // namespace dendrite
