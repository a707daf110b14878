#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf_metadata.h"
#include "io/mapped_file.h"
#include "quant/tensor_info.h"

namespace dendrite {

/// What a GGUF file says, checked in full; views of its bytes.
struct GgufContents {
  GgufMetadata metadata;
  std::vector<TensorInfo> tensors;  // sorted by name; shapes as others write them, rows first
};

/// Reads bytes of a GGUF file of version 2 or 3, little-endian. They are taken as hostile: sizes
/// are overflow-checked, keys and names are unique, arrays hold no arrays, and tensors lie one
/// after the other, each at the next multiple of the alignment. `path` is for messages and outlives
/// the result. Throws Error naming the file and, where there is one, the key or the tensor.
///
///   "GGUF" | u32 version | u64 tensors | u64 keys | keys | tensors | padding | data
///   key     string | u32 kind | value; a string is its u64 length and its bytes, an array
///           u32 kind | u64 count | values
///   tensor  string | u32 dimensions | u64 each, innermost first | u32 type | u64 offset in data
/// Source: the format's page, github.com/ggml-org/ggml/blob/master/docs/gguf.md.
GgufContents parse_gguf(std::span<const std::byte> bytes, std::string_view path);

/// One GGUF file; its bytes are mapped, not read.
class GgufFile {
 public:
  explicit GgufFile(const std::filesystem::path& path)
      : file_(path), contents_(parse_gguf(file_.bytes(), file_.path())) {}
  GgufFile(const GgufFile&) = delete;  // contents hold views of path()
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return file_.path(); }
  const MappedFile& file() const { return file_; }
  const GgufMetadata& metadata() const { return contents_.metadata; }
  std::span<const TensorInfo> tensors() const { return contents_.tensors; }

 private:
  MappedFile file_;
  GgufContents contents_;
};

}  // namespace dendrite
