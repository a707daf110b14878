#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

/// The exact checker of tool calls: well-formed JSON, a known tool, the arguments that its JSON
/// schema asks for.
namespace tool_call {

using Json = nlohmann::json;

/// Whether a value has a type of JSON Schema; a type that is not known admits all.
inline bool has_type(const Json& value, const std::string& type) {
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  return true;
}

/// The JSON of an answer: all of it, or what stands between <tool_call> tags.
inline std::string json_of(const std::string& answer) {
  static const std::string tag = "<tool_call>";
  const std::size_t begin = answer.find(tag);
  if (begin == std::string::npos) return answer;
  const std::size_t from = begin + tag.size();
  return answer.substr(from, answer.find("</tool_call>", from) - from);
}

/// What is wrong with an answer, empty when it is a call: one object {"name", "arguments"} and
/// nothing else. `tools` is an array of {"name", "parameters"}, where parameters is a JSON schema
/// of an object: type and enum of its properties and `required` are checked, and no others may be
/// given.
inline std::string problem(const Json& tools, const std::string& answer) {
  const Json call = Json::parse(json_of(answer), nullptr, false);
  if (call.is_discarded()) return "not JSON";
  if (!call.is_object() || !call.contains("name") || !call.contains("arguments") ||
      call.size() != 2 || !call["name"].is_string() || !call["arguments"].is_object()) {
    return "not an object of name and arguments";
  }
  for (const Json& tool : tools) {
    if (tool.at("name") != call["name"]) continue;
    const Json schema = tool.value("parameters", Json::object());
    const Json properties = schema.value("properties", Json::object());
    for (const Json& name : schema.value("required", Json::array())) {
      if (!call["arguments"].contains(name.get<std::string>())) {
        return "without the argument " + name.get<std::string>();
      }
    }
    for (const auto& [name, value] : call["arguments"].items()) {
      if (!properties.contains(name)) return "with an unknown argument " + name;
      const Json& property = properties[name];
      if (!has_type(value, property.value("type", ""))) {
        return name + " is not of type " + property.value("type", "");
      }
      if (property.contains("enum") && std::ranges::count(property["enum"], value) == 0) {
        return name + " is none of " + property["enum"].dump();
      }
    }
    return "";
  }
  return "of an unknown tool " + call["name"].get<std::string>();
}

}  // namespace tool_call
