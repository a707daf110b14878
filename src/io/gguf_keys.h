#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf_metadata.h"

namespace dendrite {

/// Metadata of a file's own architecture, by what stands behind its name. It knows which keys were
/// read: the others are refused, or warned of.
class GgufKeys {
 public:
  GgufKeys(const GgufMetadata& metadata, std::string_view architecture)
      : metadata_(metadata), prefix_(std::string(architecture) + ".") {}

  std::optional<std::int64_t> find_int(std::string_view key) const;  // 0 or more
  std::int64_t require_int(std::string_view key) const;
  /// An integer, or an array of the same one for each layer.
  std::optional<std::int64_t> find_of_layers(std::string_view key) const;
  std::int64_t require_of_layers(std::string_view key) const;
  /// The same, but of layers without such a thing the array may say 0.
  std::optional<std::int64_t> find_of_some_layers(std::string_view key) const;
  /// The first `layers` numbers of an array, one a layer, or so many times an integer.
  std::vector<std::int64_t> require_each(std::string_view key, std::int64_t layers) const;
  std::optional<double> find_number(std::string_view key) const;
  double require_number(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;
  /// An array, one a layer: the first `layers` of them.
  std::optional<std::vector<bool>> find_flags(std::string_view key, std::int64_t layers) const;
  bool is_array(std::string_view key) const { return metadata_.is_array(full(key)); }
  /// A key that says nothing here.
  void skip(std::string_view key) const { read_.insert(full(key)); }
  [[noreturn]] void fail(std::string_view key, const std::string& expected) const {
    metadata_.fail(full(key), expected);
  }

  /// Throws Error naming a key that changes what is computed and that nothing has read, unless it
  /// says what the others do without it.
  void refuse_unread() const;
  /// The others that nothing has read, named in one line.
  std::optional<std::string> unread() const;

 private:
  std::int64_t same_of(std::string_view key, const std::vector<std::int64_t>& each) const;
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }
  const std::string& taken(std::string_view key) const { return *read_.insert(full(key)).first; }
  bool is_read(std::string_view key) const { return read_.contains(full(key)); }

  const GgufMetadata& metadata_;
  std::string prefix_;
  mutable std::set<std::string> read_;
};

}  // namespace dendrite
