#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dendrite {

/// Text of a file made fit for one line of a message: control characters escaped, at most
/// `max_bytes` long, in double quotes.
std::string in_quotes(std::string_view text, std::size_t max_bytes = 80);

/// The text with Infinity, -Infinity and NaN, which Python writes as bare words and JSON lacks, as
/// transformers 5 has them: {"__float__": "Infinity"}. What stands in strings stays.
std::string with_named_floats(std::string_view text);

/// Bounds of a document: what is larger is refused before it can cost much memory or time.
struct JsonLimits {
  std::int64_t max_bytes = std::int64_t{16} << 20;
  std::int64_t max_values = std::int64_t{1} << 20;  // nodes of the tree
  int max_depth = 64;
};

/// What a document does with a key written twice in one object: the last one counts (as in Python),
/// or the document is refused.
enum class DuplicateKeys : std::uint8_t { kLastWins, kRefuse };

/// An inclusive range of integers.
struct IntRange {
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
};

/// An inclusive range of finite numbers.
struct NumberRange {
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
};

/// An object inside a JSON document: typed access whose errors name file, key, got and expected.
/// find_*: nullopt when the key is missing or null. require_*: an Error then.
/// *_or: the default when the key is missing; null is an Error. A view: the document must outlive
/// it.
class JsonObject {
 public:
  const std::string& file() const { return file_; }

  bool contains(std::string_view key) const;  // null counts
  bool has(std::string_view key) const;       // present and not null
  bool is_string(std::string_view key) const;

  std::int64_t require_int(std::string_view key, IntRange range = {}) const;
  std::optional<std::int64_t> find_int(std::string_view key, IntRange range = {}) const;
  std::int64_t int_or(std::string_view key, std::int64_t fallback, IntRange range = {}) const;

  double require_number(std::string_view key, NumberRange range = {}) const;
  std::optional<double> find_number(std::string_view key, NumberRange range = {}) const;
  double number_or(std::string_view key, double fallback, NumberRange range = {}) const;

  /// A list of numbers.
  std::vector<double> require_numbers(std::string_view key, NumberRange range = {}) const;
  /// A list of two numbers from 0 on, the second not less; infinity is written as transformers 5
  /// does it, {"__float__": "Infinity"}.
  std::optional<std::pair<double, double>> find_limits(std::string_view key) const;

  std::optional<bool> find_bool(std::string_view key) const;
  bool bool_or(std::string_view key, bool fallback) const;

  std::string require_string(std::string_view key) const;
  std::optional<std::string> find_string(std::string_view key) const;
  std::optional<std::vector<std::string>> find_strings(std::string_view key) const;
  /// A number or a list of numbers, as ids are written.
  std::optional<std::vector<std::int64_t>> find_ints(std::string_view key,
                                                     IntRange range = {}) const;
  std::optional<std::vector<std::vector<std::int64_t>>> find_int_lists(std::string_view key,
                                                                       IntRange range = {}) const;

  /// Whether the value says anything: it is not null, false, the number `neutral` or empty.
  bool says(std::string_view key, double neutral = 0) const;
  /// The value as messages show it.
  std::string shown(std::string_view key) const;

  JsonObject require_object(std::string_view key) const;
  std::optional<JsonObject> find_object(std::string_view key) const;
  std::vector<std::string_view> keys() const;

  /// Throws Error: `FILE: key "a.b" is GOT, expected EXPECTED`; GOT is read from the document.
  [[noreturn]] void fail(std::string_view key, const std::string& expected) const;

 private:
  friend class JsonDocument;
  JsonObject(const nlohmann::json& object, std::string file, std::string path);
  const nlohmann::json* find(std::string_view key) const;  // null when missing
  std::string key_path(std::string_view key) const;

  const nlohmann::json* object_;
  std::string file_;
  std::string path_;  // "rope_scaling" inside the document, empty at its root
};

/// A JSON document in memory, within limits.
class JsonDocument {
 public:
  /// Throws Error naming the file, and the byte where reading stopped.
  static JsonDocument read(const std::filesystem::path& file, const JsonLimits& limits = {},
                           DuplicateKeys duplicates = DuplicateKeys::kLastWins);
  static JsonDocument parse(std::string_view text, const std::string& file,
                            const JsonLimits& limits = {},
                            DuplicateKeys duplicates = DuplicateKeys::kLastWins);
  ~JsonDocument();
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;

  /// The document as an object. Throws Error when it is something else.
  JsonObject root() const;

 private:
  JsonDocument(std::unique_ptr<nlohmann::json> value, std::string file);
  std::unique_ptr<nlohmann::json> value_;
  std::string file_;
};

/// The whole file as text. Throws Error naming the file when it cannot be read or exceeds
/// `max_bytes`.
std::string read_text(const std::filesystem::path& file, std::int64_t max_bytes);

}  // namespace dendrite
