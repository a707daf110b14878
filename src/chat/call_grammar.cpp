#include "chat/call_grammar.h"

#include <algorithm>

#include "dendrite/error.h"

namespace dendrite::chats {
namespace {

const char* const kOpen = "<tool_call>";

void add(Lines& lines, Lines more) {
  std::ranges::move(more, std::back_inserter(lines));
}

/// Where others say more of the same object.
bool is_composed(const Json& schema) {
  return std::ranges::any_of(std::array{"$ref", "allOf", "anyOf", "oneOf"},
                             [&](const char* key) { return schema.contains(key); });
}

/// A schema whose objects have no properties beside those that are listed, unless it says so
/// itself: what it means to those who write it as a class or as a function's parameters.
Json closed(const Json& schema) {
  if (!schema.is_object()) return schema;
  Json made = schema;
  for (auto& [key, value] : made.items()) {
    if (key == "properties" || key == "$defs" || key == "definitions") {
      if (!value.is_object()) continue;
      for (auto& [name, part] : value.items()) part = closed(part);
    } else if (key == "items" || key == "additionalProperties") {
      value = closed(value);
    } else if ((key == "anyOf" || key == "oneOf" || key == "prefixItems") && value.is_array() &&
               !schema.contains("properties")) {
      for (Json& part : value) part = closed(part);
    }
  }
  if (made.contains("properties") && !is_composed(made)) {
    made.emplace("additionalProperties", false);
  }
  return made;
}

}  // namespace

std::string literal(const std::string& text) {
  return Json(text).dump();
}

std::string joined(const Lines& parts, const char* between) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : between) + part;
  return out;
}

std::string token_set(const std::set<Token>& ids) {
  Lines runs;
  for (auto at = ids.begin(); at != ids.end();) {
    const Token first = *at;
    Token last = first;
    while (++at != ids.end() && *at == last + 1) last = *at;
    runs.push_back(std::to_string(first) + "-" + std::to_string(last));
  }
  return runs.empty() ? "" : "<[" + joined(runs, ",") + "]>";
}

Json with_blanks(const Json& schema) {
  if (!schema.is_object()) return schema;
  Json made = {
      {"x-guidance",
       {{"whitespace_flexible", false}, {"item_separator", ", ?"}, {"key_separator", ": ?"}}}};
  made.update(schema);
  return made;
}

Json arguments_of(const Json& function) {
  Json schema = function.value("parameters", Json());
  if (schema.is_null() || schema.empty()) schema = {{"properties", Json::object()}};
  schema = closed(schema);
  if (schema.is_object() && !is_composed(schema)) {
    Json typed = {{"type", "object"}};
    typed.update(schema);
    schema = std::move(typed);
  }
  return with_blanks(schema);
}

namespace {

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

/// Up to the parameter's end; what ToolCallParser would take for a tag is not in it.
std::string text_rule(const std::string& name, const Json& schema) {
  const auto bound = [&](const char* key, const char* otherwise) {
    const Json value = schema.is_object() ? schema.value(key, Json()) : Json();
    return value.is_null() ? otherwise : value.dump();
  };
  std::string size(1, '{');
  size.append(bound("minLength", "0")).append(",").append(bound("maxLength", "")).append("}");
  return "text_" + name + "[lazy]: TEXT_" + name + " " + literal("\n</parameter>\n") + "\nTEXT_" +
         name + R"(: /(.|\n))" + size +
         R"(/ & ~/(.|\n)*<\/?(parameter|function|tool_call)[=>](.|\n)*/)";
}

/// A parameter of a function; texts are written as they are, all else as JSON.
Lines parameter_rules(const std::string& name, const std::string& key, const Json& schema,
                      const Json& root) {
  const std::string head = "parameter_" + name + ": " + literal("<parameter=" + key + ">\n");
  const std::string end = literal("\n</parameter>\n");
  const std::vector<std::string> types = types_of(schema, root);
  if (std::ranges::count(types, "string") == 0) {
    Json written = schema;
    for (const char* part : {"$defs", "definitions"}) {
      if (root.contains(part)) written[part] = root[part];
    }
    return {head + " value_" + name + " " + end,
            "value_" + name + ": %json " + with_blanks(written).dump()};
  }
  if (Lines texts = listed(schema, root); !texts.empty()) {
    std::ranges::transform(texts, texts.begin(), literal);
    return {head + " (" + joined(texts, " | ") + ") " + end};
  }
  return {head + " text_" + name, text_rule(name, schema)};
}

}  // namespace

CallGrammarWriter::CallGrammarWriter(CallForm form, std::map<std::string, Token> added,
                                     const std::set<Token>& eos)
    : form_(std::move(form)), added_(std::move(added)) {
  std::set<Token> others;
  for (const auto& [name, id] : added_) {
    if (!eos.contains(id) && !(form_.tag && name == kOpen)) others.insert(id);
  }
  others_ = token_set(others);
  free_ = others_.empty() ? "TEXT" : "(TEXT | " + others_ + ")";
}

std::string CallGrammarWriter::grammar(std::span<const Json> functions, const ToolChoice& choice,
                                       const Json& answer) const try {
  Lines lines;
  if (choice.required) {
    lines = {"start: calls", calls(choice)};
  } else if (!answer.is_null()) {
    lines = {"start: calls | answer", "answer: %json " + with_blanks(answer).dump(), calls(choice)};
  } else if (form_.tag || form_.function) {
    lines = tags_in_text(choice);
  } else {
    lines = json_or_text(choice);
  }
  // (JSON in the pieces of which %json makes it: the longest match alone decides what a piece is,
  // and "{" may also begin the answer.)
  lines.push_back(form_.function ? R"(call: "<function=" rest)"
                                 : R"(call: "{" "\"name\"" /: ?/ rest)");
  Lines rests;
  for (std::size_t i = 0; i < functions.size(); ++i) rests.push_back("rest_" + std::to_string(i));
  lines.push_back("rest: " + joined(rests, " | "));
  for (std::size_t i = 0; i < functions.size(); ++i) {
    const std::string number = std::to_string(i);
    add(lines,
        form_.function ? function_rules(number, functions[i]) : json_rules(number, functions[i]));
  }
  return joined(lines, "\n") + "\n";
} catch (const Json::exception& error) {
  throw ConstraintError("no JSON schema of an object: " + std::string(error.what()));
}

std::string CallGrammarWriter::calls(const ToolChoice& choice) const {
  const std::string one = form_.tag ? token(kOpen) + R"( "\n"? call )" + close() : "call";
  if (!choice.parallel) return "calls: " + one;
  if (form_.tag || form_.function) return "calls: " + one + R"( ("\n"? )" + one + ")*";
  return "calls: " + one + " (/; ?/ " + one + R"()* | "[" )" + one + " (/, ?/ " + one + R"()* "]")";
}

Lines CallGrammarWriter::tags_in_text(const ToolChoice& choice) const {
  Lines begun;
  Lines lines = {"start: " + (choice.parallel ? "(" + free_ + " | begun)*" : free_ + "* begun?"),
                 R"(TEXT: /(.|\n)+/)"};
  // Where a lazy one has matched, the text is not TEXT any more.
  if (form_.tag) {
    lines.push_back(R"(opening[lazy]: /(.|\n)*/ ")" + std::string(kOpen) + "\"");
    begun.push_back("(opening" + (added_.contains(kOpen) ? " | " + token(kOpen) : "") +
                    R"() "\n"? call )" + close());
  }
  if (form_.function) {
    lines.push_back(R"(bare[lazy]: /(.|\n)*/ "<function=")");
    begun.push_back("bare rest");
  }
  lines.push_back("begun: " + joined(begun, " | "));
  return lines;
}

Lines CallGrammarWriter::json_or_text(const ToolChoice& choice) const {
  const std::string before = others_.empty() ? "" : others_ + "*";
  Lines lines = {"start: " + before + " begun | " + free_ + "*", R"(TEXT: /(.|\n)+/)",
                 // Where a lazy one has matched, the text is not TEXT any more.
                 R"(first[lazy]: /\s*\{\s*"name"\s*:/)"};
  if (!choice.parallel) {
    lines.push_back(R"(begun: first " "? rest)");
    return lines;
  }
  lines.push_back(R"(first_of_list[lazy]: /\s*\[\s*\{\s*"name"\s*:/)");
  lines.push_back(
      R"(begun: first " "? rest (/; ?/ call)* | first_of_list " "? rest (/, ?/ call)* "]")");
  return lines;
}

Lines CallGrammarWriter::json_rules(const std::string& i, const Json& function) const {
  const std::string name = literal(literal(function["name"].get<std::string>()));
  return {"rest_" + i + ": " + name + " /, ?/ " + literal(literal(form_.key)) +
              " /: ?/ arguments_" + i + R"( "}")",
          "arguments_" + i + ": %json " + arguments_of(function).dump()};
}

Lines CallGrammarWriter::function_rules(const std::string& i, const Json& function) const {
  Json parameters = function.value("parameters", Json());
  if (parameters.is_null()) parameters = Json::object();
  Json properties = parameters.value("properties", Json());
  if (properties.is_null()) properties = Json::object();
  if (!properties.is_object()) {
    throw ConstraintError(std::string("no JSON schema of an object: its properties are a ") +
                          properties.type_name());
  }
  const Json required = parameters.value("required", Json::array());
  Lines rules = {literal(function["name"].get<std::string>() + ">\n")}, lines;
  std::size_t j = 0;
  for (const auto& [key, schema] : properties.items()) {
    const std::string name = i + "_" + std::to_string(j++);
    const bool optional = std::ranges::count(required, Json(key)) == 0;
    rules.push_back("parameter_" + name + (optional ? "?" : ""));
    add(lines, parameter_rules(name, key, resolved(schema, parameters), parameters));
  }
  const Json more = parameters.value("additionalProperties", Json(false));
  if (more != false && !(more.is_object() && more.empty())) {
    rules.push_back("other_" + i + "*");
    lines.push_back("other_" + i + R"(: "<parameter=" /[^>\n]+/ ">\n" text_)" + i);
    lines.push_back(text_rule(i, Json::object()));
  }
  lines.insert(lines.begin(), "rest_" + i + ": " + joined(rules, " ") + R"( "</function>")");
  return lines;
}

std::string CallGrammarWriter::token(const std::string& tag) const {
  const auto found = added_.find(tag);
  return found == added_.end() ? literal(tag) : "<[" + std::to_string(found->second) + "]>";
}

std::string CallGrammarWriter::close() const {
  return R"("\n"? )" + token("</tool_call>");
}

}  // namespace dendrite::chats
