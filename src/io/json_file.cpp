#include "io/json_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "dendrite/error.h"
#include "io/mapped_file.h"

namespace dendrite {
namespace {

using Json = nlohmann::json;

/// A value as one line of a message shows it: short, and never a whole subtree.
std::string in_words(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list of " + std::to_string(value.size());
    case Json::value_t::string:
      return in_quotes(value.get_ref<const std::string&>());
    default:
      return value.dump();
  }
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string range_text(const std::string& noun, IntRange range) {
  const IntRange all;
  if (range.min == all.min && range.max == all.max) return noun;
  if (range.max == all.max) return noun + " of at least " + std::to_string(range.min);
  return noun + " from " + std::to_string(range.min) + " to " + std::to_string(range.max);
}

std::string range_text(const std::string& noun, NumberRange range) {
  const NumberRange all;
  if (range.min == all.min && range.max == all.max) return noun;
  if (range.max == all.max) return noun + " of at least " + number_text(range.min);
  return noun + " from " + number_text(range.min) + " to " + number_text(range.max);
}

/// The value as an integer of the range, nullopt for anything else: 4096.0 is not an integer, true
/// neither, and 2^64 does not fit.
std::optional<std::int64_t> as_int(const Json& value, IntRange range) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() >
          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  const auto number = value.get<std::int64_t>();
  if (number < range.min || number > range.max) return std::nullopt;
  return number;
}

/// Finds keys written twice while a document is parsed: the keys of each open object, by depth.
class KeyWatch {
 public:
  void open() { keys_.emplace_back(); }
  void close() { keys_.pop_back(); }
  bool add(const std::string& key) { return keys_.back().insert(key).second; }

 private:
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

std::string in_quotes(std::string_view text, std::size_t max_bytes) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i >= max_bytes &&
        (static_cast<unsigned char>(text[i]) & 0xc0u) != 0x80u) {  // not inside a character
      out += "\"... (" + std::to_string(text.size()) + " bytes)";
      return out;
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 || byte == 0x7f) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", byte);
      out += escape;
    } else {
      out += text[i];
    }
  }
  return out + "\"";
}

std::string with_named_floats(std::string_view text) {
  constexpr std::string_view kWords[] = {"-Infinity", "Infinity", "NaN"};
  std::string out;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    const auto word = std::ranges::find_if(
        kWords, [&](std::string_view each) { return !quoted && rest.starts_with(each); });
    if (word != std::end(kWords)) {
      out += R"({"__float__": ")" + std::string(*word) + "\"}";
      i += word->size();
      continue;
    }
    const bool escapes = quoted && text[i] == '\\' && i + 1 < text.size();
    if (text[i] == '"') quoted = !quoted;
    out += text.substr(i, escapes ? 2 : 1);
    i += escapes ? 2 : 1;
  }
  return out;
}

std::string read_text(const std::filesystem::path& file, std::int64_t max_bytes) {
  const MappedFile mapped(file);
  if (mapped.size_bytes() > max_bytes) {
    throw Error(mapped.path() + ": has " + std::to_string(mapped.size_bytes()) +
                " bytes, expected at most " + std::to_string(max_bytes));
  }
  return {reinterpret_cast<const char*>(mapped.data()),
          static_cast<std::size_t>(mapped.size_bytes())};
}

// --- JsonDocument

JsonDocument::JsonDocument(std::unique_ptr<Json> value, std::string file)
    : value_(std::move(value)), file_(std::move(file)) {}
JsonDocument::~JsonDocument() = default;
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;

JsonDocument JsonDocument::read(const std::filesystem::path& file, const JsonLimits& limits,
                                DuplicateKeys duplicates) {
  return parse(read_text(file, limits.max_bytes), file.string(), limits, duplicates);
}

JsonDocument JsonDocument::parse(std::string_view text, const std::string& file,
                                 const JsonLimits& limits, DuplicateKeys duplicates) {
  if (static_cast<std::int64_t>(text.size()) > limits.max_bytes) {
    throw Error(file + ": has " + std::to_string(text.size()) + " bytes, expected at most " +
                std::to_string(limits.max_bytes));
  }
  std::int64_t values = 0;
  KeyWatch keys;
  const bool watch = duplicates == DuplicateKeys::kRefuse;
  // The parser itself keeps no call stack a level; the depth is bounded for whoever walks the tree.
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth >= limits.max_depth) {
      throw Error(file + ": is nested deeper than " + std::to_string(limits.max_depth) + " levels");
    }
    if (event != Json::parse_event_t::object_end && event != Json::parse_event_t::array_end &&
        ++values > limits.max_values) {
      throw Error(file + ": holds more than " + std::to_string(limits.max_values) + " values");
    }
    if (watch) {
      if (event == Json::parse_event_t::object_start) keys.open();
      if (event == Json::parse_event_t::object_end) keys.close();
      if (event == Json::parse_event_t::key && !keys.add(parsed.get_ref<const std::string&>())) {
        throw Error(file + ": key " + in_quotes(parsed.get_ref<const std::string&>()) +
                    " is written twice in one object");
      }
    }
    return true;
  };
  auto value = std::make_unique<Json>();
  try {
    *value = Json::parse(text.begin(), text.end(), check);
  } catch (const Json::parse_error& error) {
    throw Error(file + ": is not valid JSON: " +
                (error.byte > text.size() ? "ends too early"
                                          : "stopped at byte " + std::to_string(error.byte)) +
                " (it has " + std::to_string(text.size()) + " bytes)");
  } catch (const Json::out_of_range& error) {  // a number like 1e999
    throw Error(file + ": is not valid JSON: holds a number too large for a double");
  }
  return {std::move(value), file};
}

JsonObject JsonDocument::root() const {
  if (!value_->is_object())
    throw Error(file_ + ": is " + in_words(*value_) + ", expected a JSON object");
  return {*value_, file_, ""};
}

// --- JsonObject

JsonObject::JsonObject(const Json& object, std::string file, std::string path)
    : object_(&object), file_(std::move(file)), path_(std::move(path)) {}

const Json* JsonObject::find(std::string_view key) const {
  const auto it = object_->find(key);
  return it == object_->end() ? nullptr : &*it;
}

std::string JsonObject::key_path(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

bool JsonObject::contains(std::string_view key) const {
  return find(key) != nullptr;
}

bool JsonObject::has(std::string_view key) const {
  const Json* value = find(key);
  return value != nullptr && !value->is_null();
}

void JsonObject::fail(std::string_view key, const std::string& expected) const {
  const Json* value = find(key);
  const std::string got = value == nullptr ? "is missing" : "is " + in_words(*value);
  throw Error(file_ + ": key " + in_quotes(key_path(key)) + " " + got + ", expected " + expected);
}

bool JsonObject::is_string(std::string_view key) const {
  const Json* value = find(key);
  return value != nullptr && value->is_string();
}

std::int64_t JsonObject::require_int(std::string_view key, IntRange range) const {
  const Json* value = find(key);
  const auto number = value == nullptr ? std::nullopt : as_int(*value, range);
  if (!number) fail(key, range_text("an integer", range));
  return *number;
}

std::optional<std::int64_t> JsonObject::find_int(std::string_view key, IntRange range) const {
  if (!has(key)) return std::nullopt;
  return require_int(key, range);
}

std::int64_t JsonObject::int_or(std::string_view key, std::int64_t fallback, IntRange range) const {
  return contains(key) ? require_int(key, range) : fallback;
}

double JsonObject::require_number(std::string_view key, NumberRange range) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_number()) fail(key, range_text("a number", range));
  const double number = value->get<double>();
  if (!std::isfinite(number) || number < range.min || number > range.max) {
    fail(key, range_text("a number", range));
  }
  return number;
}

std::optional<double> JsonObject::find_number(std::string_view key, NumberRange range) const {
  if (!has(key)) return std::nullopt;
  return require_number(key, range);
}

double JsonObject::number_or(std::string_view key, double fallback, NumberRange range) const {
  return contains(key) ? require_number(key, range) : fallback;
}

std::vector<double> JsonObject::require_numbers(std::string_view key, NumberRange range) const {
  const Json* value = find(key);
  const std::string expected = "a list, each " + range_text("a number", range);
  if (value == nullptr || !value->is_array()) fail(key, expected);
  std::vector<double> out;
  for (const Json& element : *value) {
    const double number = element.is_number() ? element.get<double>() : std::nan("");
    if (!std::isfinite(number) || number < range.min || number > range.max) {
      fail(key, expected + " (one element is " + in_words(element) + ")");
    }
    out.push_back(number);
  }
  return out;
}

std::optional<std::pair<double, double>> JsonObject::find_limits(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  const auto number = [](const Json& value) {
    if (value.is_number()) return value.get<double>();
    const bool named = value.is_object() && value.size() == 1 && value.contains("__float__");
    return named && value.at("__float__") == "Infinity" ? std::numeric_limits<double>::infinity()
                                                        : std::nan("");
  };
  const Json* value = find(key);
  if (value->is_array() && value->size() == 2) {
    const std::pair limits{number(value->at(0)), number(value->at(1))};
    if (limits.first >= 0 && std::isfinite(limits.first) && limits.second >= limits.first) {
      return limits;
    }
  }
  fail(key, "a list of two numbers from 0 on, the second not less, or Infinity");
}

std::optional<bool> JsonObject::find_bool(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  const Json* value = find(key);
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

bool JsonObject::bool_or(std::string_view key, bool fallback) const {
  if (!contains(key)) return fallback;
  const auto value = find_bool(key);
  if (!value) fail(key, "true or false");
  return *value;
}

std::string JsonObject::require_string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_string()) fail(key, "a string");
  return value->get<std::string>();
}

std::optional<std::string> JsonObject::find_string(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return require_string(key);
}

std::optional<std::vector<std::string>> JsonObject::find_strings(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  const Json* value = find(key);
  if (!value->is_array()) fail(key, "a list of strings");
  std::vector<std::string> out;
  for (const Json& element : *value) {
    if (!element.is_string())
      fail(key, "a list of strings (one element is " + in_words(element) + ")");
    out.push_back(element.get<std::string>());
  }
  return out;
}

std::optional<std::vector<std::int64_t>> JsonObject::find_ints(std::string_view key,
                                                               IntRange range) const {
  if (!has(key)) return std::nullopt;
  const Json* value = find(key);
  if (!value->is_array()) return std::vector{require_int(key, range)};
  std::vector<std::int64_t> out;
  for (const Json& element : *value) {
    const auto number = as_int(element, range);
    if (!number) {
      fail(key, range_text("an integer", range) + ", or a list of them (one element is " +
                    in_words(element) + ")");
    }
    out.push_back(*number);
  }
  return out;
}

std::optional<std::vector<std::vector<std::int64_t>>> JsonObject::find_int_lists(
    std::string_view key, IntRange range) const {
  if (!has(key)) return std::nullopt;
  const std::string expected = "a list of lists of integers";
  const Json* value = find(key);
  if (!value->is_array()) fail(key, expected);
  std::vector<std::vector<std::int64_t>> out;
  for (const Json& list : *value) {
    if (!list.is_array()) fail(key, expected + " (one element is " + in_words(list) + ")");
    out.emplace_back();
    for (const Json& element : list) {
      const auto number = as_int(element, range);
      if (!number) fail(key, expected + " (one of them is " + in_words(element) + ")");
      out.back().push_back(*number);
    }
  }
  return out;
}

bool JsonObject::says(std::string_view key, double neutral) const {
  const Json* value = find(key);
  if (value == nullptr || value->empty()) return false;  // (null is empty)
  if (value->is_boolean()) return value->get<bool>();
  return !value->is_number() || value->get<double>() != neutral;
}

std::string JsonObject::shown(std::string_view key) const {
  const Json* value = find(key);
  return value == nullptr ? "missing" : in_words(*value);
}

JsonObject JsonObject::require_object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_object()) fail(key, "an object");
  return {*value, file_, key_path(key)};
}

std::optional<JsonObject> JsonObject::find_object(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return require_object(key);
}

std::vector<std::string_view> JsonObject::keys() const {
  std::vector<std::string_view> out;
  for (const auto& [key, value] : object_->items()) out.emplace_back(key);
  return out;
}

}  // namespace dendrite
