#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "io/output_file.h"

namespace dendrite {

/// A tensor that is to be written.
struct TensorToWrite {
  std::string name;
  std::string type;  // as files spell it
  std::int64_t value_bytes = 0;
  std::vector<std::int64_t> shape;

  std::int64_t size_bytes() const;
};

/// A safetensors file that is written tensor by tensor (safetensors.h says what is in it). Tensors
/// of larger values come first in it, so that all are aligned, which some readers need.
class SafetensorsOutput {
 public:
  /// Writes the header. Names are unique. Throws Error naming the file, with the system's words.
  SafetensorsOutput(const std::filesystem::path& file, std::span<const TensorToWrite> tensors);

  /// All bytes of one of the tensors, by its place among those that the object was given.
  void write(std::size_t tensor, std::span<const std::byte> bytes);
  /// All have been written. Puts them on the disk.
  void finish();

 private:
  struct Extent {
    std::int64_t begin = 0, size = 0;
    bool written = false;
  };

  OutputFile file_;
  std::vector<Extent> extents_;
};

}  // namespace dendrite
