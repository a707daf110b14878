// Calls whose parameters stand between tags: texts as they are, all else as JSON.
#include <algorithm>

#include "chat/call_grammar.h"
#include "dendrite/error.h"

namespace dendrite::chats {
namespace {

using Kind = CallForm::Kind;

/// The texts that a schema allows; none where they are not a list of texts and null.
Lines listed(const Json& given, const Json& root) {
  const Json schema = resolved(given, root);
  if (!schema.is_object()) return {};
  Lines texts;
  if (schema.contains("anyOf")) {
    for (const Json& option : schema["anyOf"]) {
      Lines part = listed(option, root);
      if (part.empty()) return {};
      add(texts, std::move(part));
    }
    return texts;
  }
  if (schema.value("type", Json()) == "null") return {"null"};
  const Json one = schema.contains("const") ? Json::array({schema["const"]}) : Json::array();
  for (const Json& value : schema.value("enum", one)) {
    if (!value.is_string()) return {};
    texts.push_back(value.get<std::string>());
  }
  return texts;
}

/// What stands around keys and values.
struct Around {
  std::string before_key, behind_key;  // expressions; the second ends before a value
  std::string key;                     // any, as a regular expression
  std::string end;                     // of a value: an expression
  std::string end_text;                // ... where it is text; else empty
  std::string tags;                    // what ToolCallParser would take for a tag
};

Lines value_rules_of(const std::string& name, const Around& around, const Json& schema) {
  if (!around.end_text.empty()) return text_rules(name, schema, around.tags, around.end_text);
  Lines lines = text_rules(name, schema, around.tags, "");
  lines.insert(lines.begin(), "text_" + name + ": TEXT_" + name + "? " + around.end);
  return lines;
}

Lines rules_of(const std::string& name, const std::string& head, const Around& around,
               const Json& schema, const Json& root) {
  const std::vector<std::string> types = types_of(schema, root);
  if (std::ranges::count(types, "string") == 0) {
    Json written = schema;
    for (const char* part : {"$defs", "definitions"}) {
      if (root.contains(part)) written[part] = root[part];
    }
    // (Behind a number that cannot go on the matcher takes text, and no token.)
    const char* const line = around.end_text.empty() ? R"( "\n"? )" : " ";
    return {head + " value_" + name + line + around.end,
            "value_" + name + ": %json " + with_blanks(written).dump()};
  }
  if (Lines texts = listed(schema, root); !texts.empty()) {
    std::ranges::transform(texts, texts.begin(), literal);
    return {head + " (" + joined(texts, " | ") + ") " + around.end};
  }
  Lines lines = {head + " text_" + name};
  add(lines, value_rules_of(name, around, schema));
  return lines;
}

}  // namespace

Lines text_rules(const std::string& name, const Json& lengths, const std::string& tags,
                 const std::string& end) {
  const auto bound = [&](const char* key, const char* otherwise) {
    const Json value = lengths.is_object() ? lengths.value(key, Json()) : Json();
    return value.is_null() ? otherwise : value.dump();
  };
  std::string size(1, '{');
  size.append(bound("minLength", end.empty() ? "1" : "0")).append(",");
  size.append(bound("maxLength", "")).append("}");
  Lines lines = {"TEXT_" + name + R"(: /(.|\n))" + size + "/ & ~/(.|\\n)*" + tags + "(.|\\n)*/"};
  if (!end.empty()) lines.push_back("text_" + name + "[lazy]: TEXT_" + name + " " + literal(end));
  return lines;
}

Lines CallGrammarWriter::parameter_rules(const std::string& i, const Json& function) const {
  Json parameters = function.value("parameters", Json());
  if (parameters.is_null()) parameters = Json::object();
  Json properties = parameters.value("properties", Json());
  if (properties.is_null()) properties = Json::object();
  if (!properties.is_object()) {
    throw ConstraintError(std::string("no JSON schema of an object: its properties are a ") +
                          properties.type_name());
  }
  const std::string name = function["name"].get<std::string>();
  const std::string line = form_.lines ? "\n" : "";
  Around around;
  std::string first, last;
  if (form_.kind == Kind::kKeys) {
    const std::string behind = line.empty() ? "" : " " + literal(line);
    around = {token("<arg_key>"),
              token("</arg_key>") + behind + " " + token("<arg_value>"),
              R"(/[^<\n]+/)",
              token("</arg_value>") + behind,
              added_.contains("</arg_value>") ? "" : "</arg_value>" + line,
              R"(<\/?(arg_key|arg_value|tool_call)>)"};
    first = literal(name + line);
  } else if (form_.kind == Kind::kInvoke) {
    around = {literal("<parameter name=\""),
              literal("\">"),
              R"(/[^"\n]+/)",
              literal("</parameter>\n"),
              "</parameter>\n",
              R"(<\/?(parameter|invoke|minimax:tool_call)[ >])"};
    first = literal(name + "\">\n");
    last = R"( "</invoke>")";
  } else {
    around = {literal("<parameter="),  literal(">" + line),
              R"(/[^>\n]+/)",          literal(line + "</parameter>\n"),
              line + "</parameter>\n", R"(<\/?(parameter|function|(seed:)?tool_call)[=>])"};
    first = literal(name + ">\n");
    last = R"( "</function>")";
  }
  const Json required = parameters.value("required", Json::array());
  Lines rules = {first}, lines;
  std::size_t j = 0;
  for (const auto& [key, schema] : properties.items()) {
    const std::string number = i + "_" + std::to_string(j++);
    const bool optional = std::ranges::count(required, Json(key)) == 0;
    rules.push_back("parameter_" + number + (optional ? "?" : ""));
    const std::string head = "parameter_" + number + ": " + around.before_key + " " + literal(key) +
                             " " + around.behind_key;
    add(lines, rules_of(number, head, around, resolved(schema, parameters), parameters));
  }
  const Json more = parameters.value("additionalProperties", Json(false));
  if (more != false && !(more.is_object() && more.empty())) {
    rules.push_back("other_" + i + "*");
    lines.push_back("other_" + i + ": " + around.before_key + " " + around.key + " " +
                    around.behind_key + " text_" + i);
    add(lines, value_rules_of(i, around, Json::object()));
  }
  lines.insert(lines.begin(), "rest_" + i + ": " + joined(rules, " ") + last);
  return lines;
}

}  // namespace dendrite::chats
