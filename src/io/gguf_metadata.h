#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_file.h"

namespace dendrite {

/// What a value of a GGUF file's metadata is, by its number in the file.
enum class GgufKind : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

/// A value where it lies in the file: all of it is known to be inside.
struct GgufValue {
  std::string_view key;
  GgufKind kind = GgufKind::kU8;  // of an array: of its elements, never kArray
  bool array = false;
  std::uint64_t count = 1;          // of an array
  const std::byte* data = nullptr;  // numbers one by one, strings with their lengths in front
};

/// The metadata of a GGUF file: typed access whose errors name file, key, got and expected.
/// find_*: nullopt when there is no such key. require_*: an Error then. Views of the file.
class GgufMetadata {
 public:
  /// `values` sorted by key, each once. `file` is for messages and outlives it.
  GgufMetadata(std::string_view file, std::vector<GgufValue> values)
      : file_(file), values_(std::move(values)) {}

  std::string_view file() const { return file_; }
  std::span<const GgufValue> values() const { return values_; }
  bool has(std::string_view key) const { return find(key) != nullptr; }

  std::optional<std::int64_t> find_int(std::string_view key, IntRange range = {}) const;
  std::int64_t require_int(std::string_view key, IntRange range = {}) const;
  std::optional<double> find_number(std::string_view key) const;  // finite
  double require_number(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;
  std::string_view require_string(std::string_view key) const;

  std::optional<std::vector<std::string_view>> find_strings(std::string_view key) const;
  std::vector<std::string_view> require_strings(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> find_ints(std::string_view key) const;
  std::optional<std::vector<float>> find_floats(std::string_view key) const;
  std::optional<std::vector<bool>> find_flags(std::string_view key) const;
  bool is_array(std::string_view key) const;

  /// Throws Error: `FILE: key "a.b" is GOT, expected EXPECTED`.
  [[noreturn]] void fail(std::string_view key, const std::string& expected) const;

 private:
  const GgufValue* find(std::string_view key) const;  // null when missing

  std::string_view file_;
  std::vector<GgufValue> values_;
};

/// Bytes of a number or bool, 0 for others.
std::int64_t size_of(GgufKind kind);

}  // namespace dendrite
