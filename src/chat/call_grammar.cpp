#include "chat/call_grammar.h"

#include <algorithm>
#include <array>

#include "chat/call_tags.h"
#include "dendrite/error.h"

namespace dendrite::chats {
namespace {

using Kind = CallForm::Kind;

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

void add(Lines& lines, Lines more) {
  std::ranges::move(more, std::back_inserter(lines));
}

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

CallGrammarWriter::CallGrammarWriter(CallForm form, std::map<std::string, Token> added,
                                     const std::set<Token>& eos)
    : form_(std::move(form)), added_(std::move(added)) {
  std::set<Token> others;
  for (const auto& [name, id] : added_) {
    if (!eos.contains(id) && name != form_.open) others.insert(id);
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
  } else if (!form_.open.empty() || form_.kind != Kind::kJson) {
    lines = tags_in_text(choice);
  } else {
    lines = json_or_text(choice);
  }
  // (JSON in the pieces of which %json makes it: the longest match alone decides what a piece is,
  // and "{" may also begin the answer.)
  lines.push_back("call: " + (form_.kind == Kind::kJson ? R"("{" "\"name\"" /: ?/ rest)"
                              : begin().empty()         ? "rest"
                                                        : literal(begin()) + " rest"));
  Lines rests;
  for (std::size_t i = 0; i < functions.size(); ++i) rests.push_back("rest_" + std::to_string(i));
  lines.push_back("rest: " + joined(rests, " | "));
  for (std::size_t i = 0; i < functions.size(); ++i) {
    const std::string number = std::to_string(i);
    add(lines, rules(number, functions[i]));
  }
  return joined(lines, "\n") + "\n";
} catch (const Json::exception& error) {
  throw ConstraintError("no JSON schema of an object: " + std::string(error.what()));
}

/// What stands before a call's name, and is text.
std::string CallGrammarWriter::begin() const {
  return form_.kind == Kind::kFunction ? std::string(kFunctionBegin)
         : form_.kind == Kind::kInvoke ? std::string(kInvokeBegin)
         : form_.kind == Kind::kGemma  ? "call:"
                                       : "";
}

std::string CallGrammarWriter::calls(const ToolChoice& choice) const {
  if (form_.open.empty() && form_.kind == Kind::kJson) {
    if (!choice.parallel) return "calls: call";
    return R"(calls: call (/; ?/ call)* | "[" call (/, ?/ call)* "]")";
  }
  const std::string one = (form_.open.empty() ? "" : token(form_.open) + " ") + behind_tag(choice);
  return "calls: " + one + (choice.parallel ? R"( ("\n"? )" + one + ")*" : "");
}

/// What follows an opening tag, up to its end.
std::string CallGrammarWriter::behind_tag(const ToolChoice& choice) const {
  std::string body = "call";
  if (form_.list || form_.kind == Kind::kPython) {
    body = R"("[" call )" + std::string(choice.parallel ? R"((/, ?/ call)* )" : "") + R"("]")";
  } else if (form_.kind == Kind::kInvoke && choice.parallel) {
    body = R"(call ("\n"? call)*)";
  }
  if (form_.open.empty()) return body;
  const bool has_blanks =
      form_.kind == Kind::kJson || form_.kind == Kind::kFunction || form_.kind == Kind::kInvoke;
  if (has_blanks) body.insert(0, form_.close.empty() ? R"(" "? )" : R"("\n"? )");
  if (form_.close.empty()) return body;
  return body + (has_blanks ? R"( "\n"? )" : " ") + token(form_.close);
}

Lines CallGrammarWriter::tags_in_text(const ToolChoice& choice) const {
  Lines begun;
  Lines lines = {"start: " + (choice.parallel ? "(" + free_ + " | begun)*" : free_ + "* begun?"),
                 R"(TEXT: /(.|\n)+/)"};
  // Where a lazy one has matched, the text is not TEXT any more.
  if (!form_.open.empty()) {
    lines.push_back(R"(opening[lazy]: /(.|\n)*/ )" + literal(form_.open));
    begun.push_back("(opening" + (added_.contains(form_.open) ? " | " + token(form_.open) : "") +
                    ") " + behind_tag(choice));
  }
  if (form_.kind == Kind::kFunction || form_.kind == Kind::kInvoke) {
    lines.push_back(R"(bare[lazy]: /(.|\n)*/ )" + literal(begin()));
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

Lines CallGrammarWriter::rules(const std::string& i, const Json& function) const {
  const std::string name = function["name"].get<std::string>();
  switch (form_.kind) {
    case Kind::kJson:
      return {"rest_" + i + ": " + literal(literal(name)) + " /, ?/ " +
                  literal(literal(form_.key)) + " /: ?/ arguments_" + i + R"( "}")",
              "arguments_" + i + ": %json " + arguments_of(function).dump()};
    case Kind::kNamed:
      return {"rest_" + i + ": " + literal(name) +
                  (form_.id ? " " + token("[CALL_ID]") + " /[a-zA-Z0-9]{9}/ " : " ") +
                  token("[ARGS]") + " arguments_" + i,
              "arguments_" + i + ": %json " + arguments_of(function).dump()};
    case Kind::kGemma:
    case Kind::kPython:
      return value_rules(i, function);
    default:
      return parameter_rules(i, function);
  }
}

std::string CallGrammarWriter::token(const std::string& tag) const {
  const auto found = added_.find(tag);
  return found == added_.end() ? literal(tag) : "<[" + std::to_string(found->second) + "]>";
}

}  // namespace dendrite::chats
