#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "dendrite/error.h"

namespace dendrite {

/// JSON whose objects keep the order of their keys: templates print tool schemas as they came.
/// For .cpp files of the text room.
using Json = nlohmann::ordered_json;

/// Parses UTF-8 JSON. Error: broken text, or nesting deeper than 100 (writing it back out would
/// recurse without a bound). `name` says in the message what was being read.
/// Integers beyond 64 bits become floats (but see dn_json_mark_integers); of equal keys the last
/// value counts.
inline Json parse_json(std::string_view text, const std::string& name) {
  constexpr int kMaxDepth = 100;
  const auto check_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) {
      throw Error(name + ": JSON nested deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    return true;
  };
  try {
    return Json::parse(text, check_depth);
  } catch (const Json::exception& error) {
    std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at …"
    if (const auto end = what.find("] "); end != std::string_view::npos)
      what.remove_prefix(end + 2);
    throw Error(name + ": not valid JSON: " + std::string(what));
  }
}

/// What a value is, for messages: "a JSON array", "an empty JSON array", "a JSON number".
inline std::string describe(const Json& value) {
  const bool is_empty = value.is_structured() && value.empty();
  return std::string(is_empty ? "an empty JSON " : "a JSON ") + value.type_name();
}

}  // namespace dendrite
