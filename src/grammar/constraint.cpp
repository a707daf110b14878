#include "dendrite/constraint.h"

#include "dendrite/error.h"

namespace dendrite {
namespace {

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      constexpr char kHex[] = "0123456789abcdef";
      out += "\\u00";
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[c & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

}  // namespace

Constraint Constraint::json_schema(std::string schema) {
  return {Kind::kJsonSchema, std::move(schema)};
}

Constraint Constraint::json_object() {
  return json_schema(R"({"type":"object"})");
}

Constraint Constraint::regex(std::string pattern) {
  return {Kind::kRegex, std::move(pattern)};
}

Constraint Constraint::lark(std::string grammar) {
  return {Kind::kLark, std::move(grammar)};
}

Constraint Constraint::choice(const std::vector<std::string>& options) {
  std::string json = "[";
  for (const std::string& option : options) {
    if (json.size() > 1) json += ',';
    append_json_string(json, option);
  }
  return {Kind::kChoice, json + "]"};
}

const char* name_of(Constraint::Kind kind) {
  switch (kind) {
    case Constraint::Kind::kJsonSchema:
      return "json_schema";
    case Constraint::Kind::kRegex:
      return "regex";
    case Constraint::Kind::kLark:
      return "lark";
    case Constraint::Kind::kChoice:
      return "choice";
  }
  return "?";
}

}  // namespace dendrite
