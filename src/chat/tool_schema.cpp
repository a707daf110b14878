#include "chat/tool_schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "chat/blank.h"
#include "dendrite/error.h"

namespace dendrite::chats {
namespace {

constexpr int kMostReferences = 16;  // one in the other
constexpr int kMostDepth = 512;      // of JSON

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

void add_types(const Json& given, const Json& root, int depth, std::vector<std::string>& out) {
  const Json schema = resolved(given, root);
  if (!schema.is_object() || depth == kMostReferences) {
    out.emplace_back("string");
    return;
  }
  if (const auto options = schema.find("anyOf"); options != schema.end() && options->is_array()) {
    for (const Json& option : *options) add_types(option, root, depth + 1, out);
    return;
  }
  const Json kind = schema.value("type", Json("string"));
  for (const Json& each : kind.is_array() ? kind : Json::array({kind})) {
    if (each.is_string()) out.push_back(each.get<std::string>());
  }
}

/// As int() of Python does, underscores aside; empty if it is none.
std::string integer_of(std::string_view text) {
  std::string_view digits = stripped(text);
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) return {};
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size() - 1));
  std::string number(digits);
  if (negative && digits != "0") number.insert(number.begin(), '-');
  return number;
}

std::string number_of(std::string_view text) {
  if (const std::string whole = integer_of(text); !whole.empty()) return whole;
  std::string_view digits = stripped(text);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  if (digits.find_first_not_of("0123456789+-.eE") != std::string_view::npos) return {};
  if (Json::accept(digits)) return std::string(digits);
  double value = 0;  // .5, 5., 05.0
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return {};
  return Json(value).dump();
}

}  // namespace

Json parsed_json(std::string_view text) {
  int depth = 0;
  bool in_string = false, is_escaped = false;
  for (const char c : text) {
    if (in_string) {
      in_string = is_escaped || c != '"';
      is_escaped = !is_escaped && c == '\\';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMostDepth) return Json::value_t::discarded;
    } else if (c == '}' || c == ']') {
      --depth;
    } else if (c == '\0') {  // where nlohmann's parser takes it for the end
      return Json::value_t::discarded;
    }
  }
  return Json::parse(text, nullptr, false);
}

std::vector<Json> functions_of(std::string_view tools_json) {
  const std::string expected = "; expected a JSON array of {\"name\": ..., \"parameters\": ...}";
  if (tools_json.empty()) return {};
  const Json tools = parsed_json(tools_json);
  if (!tools.is_array()) {
    throw Error("tools: got " +
                (tools.is_discarded() ? "no JSON" : "a " + std::string(tools.type_name())) +
                expected);
  }
  std::vector<Json> functions;
  for (const Json& tool : tools) {
    const std::string where = "tools[" + std::to_string(functions.size()) + "]";
    if (!tool.is_object()) throw Error(where + ": got a " + tool.type_name() + expected);
    Json function = tool.value("function", tool);
    if (!function.is_object() || !function.value("name", Json()).is_string()) {
      throw Error(where + " has no name; expected a function in OpenAI's form");
    }
    functions.push_back(std::move(function));
  }
  return functions;
}

Json resolved(const Json& schema, const Json& root) {
  if (!schema.is_object()) return schema;
  const Json reference = schema.value("$ref", Json());
  if (!reference.is_string() || !reference.get_ref<const std::string&>().starts_with("#/")) {
    return schema;
  }
  const std::string path = reference.get<std::string>().substr(2);
  const Json* found = &root;
  for (std::size_t at = 0; found != nullptr && at <= path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    const auto next = found->is_object() ? found->find(path.substr(at, end - at)) : found->end();
    found = found->is_object() && next != found->end() ? &*next : nullptr;
    at = end + 1;
  }
  Json made = found != nullptr && found->is_object() ? *found : Json::object();
  for (const auto& [key, value] : schema.items()) {
    if (key != "$ref") made[key] = value;
  }
  return made;
}

std::vector<std::string> types_of(const Json& schema, const Json& root) {
  std::vector<std::string> types;
  add_types(schema, root, 0, types);
  return types;
}

std::string typed(const std::string& text, const std::vector<std::string>& wanted) {
  const std::string small = lower(text);
  if ((small == "null" || small == "none") && std::ranges::count(wanted, "null") > 0) return "null";
  const auto kind = std::ranges::find_if(wanted, [](const auto& name) { return name != "null"; });
  const std::string wish = kind == wanted.end() ? "string" : *kind;
  std::string value;
  if (wish == "integer") {
    value = integer_of(text);
  } else if (wish == "number") {
    value = number_of(text);
  } else if (wish == "boolean") {
    const std::string word = lower(stripped(text));
    if (word == "true" || word == "false") value = word;
  } else if (wish == "object" || wish == "array") {
    value = json_of_literal(text);
  }
  return value.empty() ? json_string(text) : value;
}

void add_escaped(std::string& out, char c) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
    case '\\':
      out += '\\';
      out += c;
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\b':
      out += "\\b";
      return;
    case '\f':
      out += "\\f";
      return;
    default:
      if (static_cast<unsigned char>(c) >= 0x20) {
        out += c;
        return;
      }
      out += "\\u00";
      out += kHex[c >> 4];
      out += kHex[c & 15];
  }
}

void add_json(std::string& out, char c, bool in_string) {
  if (in_string && static_cast<unsigned char>(c) < 0x20) {
    add_escaped(out, c);
  } else {
    out += c;
  }
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) add_escaped(out, c);
  return out + '"';
}

ToolTable::ToolTable(std::string_view tools_json) {
  for (const Json& function : functions_of(tools_json)) {
    auto& types = tools[function["name"].get<std::string>()];
    types.clear();  // (the last one of a name counts)
    const Json root = function.value("parameters", Json());
    const Json properties = root.is_object() ? root.value("properties", Json()) : Json();
    if (!properties.is_object()) continue;
    for (const auto& [key, schema] : properties.items()) types[key] = types_of(schema, root);
  }
}

bool ToolTable::may_become(std::string_view begin) const {
  const auto next = tools.lower_bound(begin);
  return next != tools.end() && next->first.starts_with(begin);
}

std::vector<std::string> ToolTable::types(const std::string& tool,
                                          const std::string& parameter) const {
  const auto& known = tools.at(tool);
  const auto found = known.find(parameter);
  return found == known.end() ? std::vector<std::string>{"string"} : found->second;
}

}  // namespace dendrite::chats
