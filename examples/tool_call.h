#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

/// The exact checker of tool calls: well-formed JSON, a known tool, the arguments that its JSON
/// schema asks for.
namespace tool_call {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  ///< keeps the properties of a schema in their order

/// Whether a value has a type of JSON Schema; a type that is not known admits all.
inline bool has_type(const Json& value, const std::string& type) {
  if (type == "string") return value.is_string();
  if (type == "integer") {
    return value.is_number() && value.get<double>() == std::trunc(value.get<double>());
  }
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

/// What is wrong with an object, empty if nothing is, by a JSON schema of an object: type and enum
/// of its properties, also of inner objects, and `required` are checked, and no others may be
/// given. `inside` comes before the names of its properties.
inline std::string problem_of(const Json& schema, const Json& object, const std::string& inside) {
  const Json properties = schema.value("properties", Json::object());
  for (const Json& required : schema.value("required", Json::array())) {
    const std::string name = required.get<std::string>();
    if (!object.contains(name)) return "without the argument " + inside + name;
  }
  for (const auto& [key, value] : object.items()) {
    const std::string name = inside + key;
    if (!properties.contains(key)) return "with an unknown argument " + name;
    const Json& property = properties[key];
    const std::string type = property.value("type", "");
    if (!has_type(value, type)) return name + " is not of type " + type;
    if (property.contains("enum") && std::ranges::count(property["enum"], value) == 0) {
      return name + " is none of " + property["enum"].dump();
    }
    if (value.is_object() && property.contains("properties")) {
      const std::string problem = problem_of(property, value, name + ".");
      if (!problem.empty()) return problem;
    }
  }
  return "";
}

/// What is wrong with an answer, empty when it is a call: one object {"name", "arguments"} and
/// nothing else. `tools` is an array of {"name", "parameters"}, where parameters is a JSON schema
/// as `problem_of` takes it.
inline std::string problem(const Json& tools, const std::string& answer) {
  const Json call = Json::parse(json_of(answer), nullptr, false);
  if (call.is_discarded()) return "not JSON";
  if (!call.is_object() || !call.contains("name") || !call.contains("arguments") ||
      call.size() != 2 || !call["name"].is_string() || !call["arguments"].is_object()) {
    return "not an object of name and arguments";
  }
  for (const Json& tool : tools) {
    if (tool.at("name") == call["name"]) {
      return problem_of(tool.value("parameters", Json::object()), call["arguments"], "");
    }
  }
  return "of an unknown tool " + call["name"].get<std::string>();
}

}  // namespace tool_call
