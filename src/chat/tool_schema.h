#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace dendrite::chats {

using Json = nlohmann::ordered_json;  ///< keeps properties in their order

/// The functions ({"name", "parameters", ...}) of a JSON array of tools, in OpenAI's form or bare;
/// of an empty text none. Throws Error for what is none.
std::vector<Json> functions_of(std::string_view tools_json);

/// A schema, or the one in the same document that it refers to.
Json resolved(const Json& schema, const Json& root);
/// The types that a value may have; "string" where the schema does not say.
std::vector<std::string> types_of(const Json& schema, const Json& root);

/// The text of a parameter as JSON of the first type that is wanted; as a string where that is not
/// possible.
std::string typed(const std::string& text, const std::vector<std::string>& wanted);

/// Any JSON; discarded where it is none, or deeper than who recurses over it can bear (512 levels).
Json parsed_json(std::string_view text);

/// A value as Python writes it in a program, or JSON, as JSON; empty if it is neither.
std::string json_of_literal(std::string_view text);

/// A text as JSON, quotes included. Bytes that are no UTF-8 stay.
std::string json_string(std::string_view text);
/// What one character is in a string of JSON.
void add_escaped(std::string& out, char c);
/// A character of a string, or of anything else in JSON, so that it is JSON.
void add_json(std::string& out, char c, bool in_string);

/// The tools that a parser knows, and what their parameters are.
struct ToolTable {
  /// By name: the types of each property.
  std::map<std::string, std::map<std::string, std::vector<std::string>>, std::less<>> tools;

  explicit ToolTable(std::string_view tools_json);
  bool knows(std::string_view name) const { return tools.contains(name); }
  /// Whether some name begins so.
  bool may_become(std::string_view begin) const;
  /// "string" where it is not known.
  std::vector<std::string> types(const std::string& tool, const std::string& parameter) const;
};

}  // namespace dendrite::chats
