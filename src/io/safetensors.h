#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/mapped_file.h"
#include "quant/tensor_info.h"

namespace dendrite {

/// One safetensors file, header checked in full on construction and the bytes mapped, not read.
/// The file is taken as hostile: sizes are overflow-checked, names are unique, and the tensors
/// cover the data section exactly, without overlap or hole. At most 100 MB of header, parsed in one
/// pass without a document tree.
///
///   u64 LE N | N bytes of JSON, '{' first, may end in spaces | tensor bytes
///   {"__metadata__": {str: str}?, "name": {"dtype": "BF16", "shape": [..], "data_offsets": [b,
///   e]}}
class SafetensorsFile {
 public:
  /// Throws Error naming the file and, where there is one, the tensor.
  explicit SafetensorsFile(const std::filesystem::path& path);
  SafetensorsFile(const SafetensorsFile&) = delete;  // tensors hold views of path()
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return file_.path(); }
  const MappedFile& file() const { return file_; }
  /// Sorted by name.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;  // null when there is none

 private:
  MappedFile file_;
  std::vector<TensorInfo> tensors_;
};

/// The same checks on bytes in memory; `path` is for messages and must outlive the result.
std::vector<TensorInfo> parse_safetensors(std::span<const std::byte> bytes, std::string_view path);

}  // namespace dendrite
