#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dendrite {

/// One stored tensor: a view into a mapped file, valid as long as the file's owner lives.
struct TensorInfo {
  std::string name;
  std::string_view stored_type;     // as the file spells it: "BF16", "F8_E4M3", ...
  std::vector<std::int64_t> shape;  // empty: a scalar; a dimension may be 0
  const std::byte* data = nullptr;  // row-major, little-endian; may be unaligned
  std::int64_t size_bytes = 0;
  std::string_view file;  // path, for messages
};

/// Where a format looks for the tensors that make up a matrix.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const TensorInfo* find(std::string_view name) const = 0;  // null when there is none
};

/// How many values that is; of a scalar 1.
std::int64_t value_count(std::span<const std::int64_t> shape);
/// "[2, 3]"
std::string shape_text(std::span<const std::int64_t> shape);

/// Throws Error naming tensor, file, got and expected shape, unless it has this one. `reason`: why
/// it is expected.
void check_shape(const TensorInfo& tensor, std::span<const std::int64_t> shape,
                 const std::string& reason = "as config.json says");
/// The same unless it has so many bytes.
void check_bytes(const TensorInfo& tensor, std::int64_t bytes);

}  // namespace dendrite
