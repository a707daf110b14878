// Calls whose arguments are no JSON: Gemma's {key:value}, and keywords of Python.
#include <algorithm>
#include <array>

#include "chat/call_grammar.h"
#include "dendrite/error.h"

namespace dendrite::chats {
namespace {

using Kind = CallForm::Kind;

constexpr int kMostDepth = 12;

struct Member {
  std::string written;  // an expression
  bool optional = false;
};

/// Members in their order, with commas between those that are there. `more`: of further ones.
std::string in_order(const std::vector<Member>& members, const std::string& more,
                     const std::string& comma) {
  const auto behind = [&](std::size_t from) {
    std::string out;
    for (std::size_t i = from; i < members.size(); ++i) {
      out += " (" + comma + " " + members[i].written + ")" + (members[i].optional ? "?" : "");
    }
    return out + (more.empty() ? "" : " (" + comma + " " + more + ")*");
  };
  Lines starts;  // one for each that may be the first
  bool may_be_empty = true;
  for (std::size_t i = 0; i < members.size() && may_be_empty; ++i) {
    starts.push_back(members[i].written + behind(i + 1));
    may_be_empty = members[i].optional;
  }
  if (may_be_empty && !more.empty()) starts.push_back(more + behind(members.size()));
  if (starts.empty()) return "";
  return " (" + joined(starts, " | ") + ")" + (may_be_empty ? "?" : "");
}

/// A key that can stand without quotes.
const std::string& plain(const std::string& key) {
  constexpr std::string_view kOthers = "_-.";
  const bool is_plain = !key.empty() && std::ranges::all_of(key, [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || (c & 0x80) != 0 ||
           kOthers.find(c) != std::string_view::npos;
  });
  if (!is_plain)
    throw ConstraintError("a property is called " + json_string(key) +
                          ", which cannot stand without quotes");
  return key;
}

/// Rules of values as Gemma writes them.
class GemmaValues {
 public:
  GemmaValues(std::string name, const Json& root, std::string quote, bool quote_is_text)
      : name_(std::move(name)), root_(root), quote_(std::move(quote)), is_text_(quote_is_text) {}

  std::string object(const Json& schema, int depth);
  Lines take_lines() { return std::move(lines_); }

 private:
  std::string value(const Json& given, int depth);
  std::string one_of(const Json& values);
  std::string of_type(const std::string& type, const Json& schema, int depth);
  std::string text(const Json& schema);
  std::string json(const Json& schema);
  std::string any();
  std::string next() { return name_ + "_" + std::to_string(count_++); }

  std::string name_;
  const Json& root_;
  std::string quote_;  // an expression
  bool is_text_;       // ... which is no token
  bool has_any_ = false;
  int count_ = 0;
  Lines lines_;
};

std::string GemmaValues::value(const Json& given, int depth) {
  const Json schema = resolved(given, root_);
  if (!schema.is_object() || schema.empty() || depth == kMostDepth) return any();
  constexpr std::array kKnown = {"type",
                                 "enum",
                                 "const",
                                 "anyOf",
                                 "oneOf",
                                 "items",
                                 "properties",
                                 "required",
                                 "additionalProperties",
                                 "minimum",
                                 "maximum",
                                 "exclusiveMinimum",
                                 "exclusiveMaximum",
                                 "multipleOf",
                                 "minLength",
                                 "maxLength",
                                 "minItems",
                                 "maxItems",
                                 "title",
                                 "description",
                                 "default",
                                 "examples",
                                 "format",
                                 "nullable",
                                 "$defs",
                                 "definitions"};
  for (const auto& [key, part] : schema.items()) {
    if (std::ranges::count(kKnown, std::string_view(key)) == 0) {
      throw ConstraintError("its " + json_string(key) +
                            " cannot be held to in Gemma's form of calls");
    }
  }
  if (schema.contains("const")) return one_of(Json::array({schema["const"]}));
  if (schema.contains("enum")) return one_of(schema["enum"]);
  Lines options;
  for (const char* key : {"anyOf", "oneOf"}) {
    if (!schema.contains(key)) continue;
    for (const Json& option : schema[key]) options.push_back(value(option, depth + 1));
  }
  if (options.empty() && !schema.contains("type"))
    return schema.contains("properties") ? object(schema, depth) : any();
  if (options.empty()) {
    const Json type = schema["type"];
    for (const Json& each : type.is_array() ? type : Json::array({type})) {
      options.push_back(of_type(each.get<std::string>(), schema, depth));
    }
  }
  return "(" + joined(options, " | ") + ")";
}

std::string GemmaValues::one_of(const Json& values) {
  Lines options;
  for (const Json& each : values) {
    if (each.is_structured())
      throw ConstraintError("one of its values is a " + std::string(each.type_name()));
    const std::string said = each.is_string() ? each.get<std::string>() : each.dump();
    Lines parts = {literal(said)};
    if (said.empty()) parts.clear();
    if (each.is_string()) {
      parts.insert(parts.begin(), quote_);
      parts.push_back(quote_);
    }
    options.push_back(joined(parts, " "));
  }
  std::string all(1, '(');
  return all.append(joined(options, " | ")).append(")");
}

std::string GemmaValues::of_type(const std::string& type, const Json& schema, int depth) {
  if (type == "string") return text(schema);
  if (type == "boolean") return R"(("true" | "false"))";
  if (type == "null") return R"("null")";
  if (type == "object") return object(schema, depth);
  if (type == "array") {
    const std::string item = value(schema.value("items", Json()), depth + 1);
    const std::int64_t least = schema.value("minItems", std::int64_t{0});
    const std::string most = schema.contains("maxItems")
                                 ? std::to_string(schema["maxItems"].get<std::int64_t>() - 1)
                                 : "";
    if (most == "-1") return R"("[" "]")";
    const std::string more = "(\",\" " + item + "){" +
                             std::to_string(std::max<std::int64_t>(least - 1, 0)) + "," + most +
                             "}";
    const std::string all = item + (most == "0" ? "" : " " + more);
    return "(\"[\" " + (least > 0 ? all : "(" + all + ")?") + " \"]\")";
  }
  Json number = Json::object();
  for (const char* key :
       {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
    if (schema.contains(key)) number[key] = schema[key];
  }
  number["type"] = type;
  return json(number);
}

std::string GemmaValues::text(const Json& schema) {
  const std::string name = next();
  const bool may_be_empty = schema.value("minLength", 0) == 0;
  add(lines_, text_rules(name, schema, R"(<\|"\|>)", is_text_ ? "<|\"|>" : ""));
  if (is_text_) return "(" + quote_ + " text_" + name + ")";
  return "(" + quote_ + " TEXT_" + name + (may_be_empty ? "? " : " ") + quote_ + ")";
}

std::string GemmaValues::json(const Json& schema) {
  const std::string name = next();
  lines_.push_back("number_" + name + ": %json " + schema.dump());
  return "number_" + name;
}

std::string GemmaValues::any() {
  const std::string rule = "any_" + name_;
  if (std::exchange(has_any_, true)) return rule;
  const std::string pair = "(/[A-Za-z0-9_]+/ \":\" " + rule + ")";
  const auto several = [](const std::string& one) { return "(" + one + " (\",\" " + one + ")*)?"; };
  lines_.push_back(rule + ": " + text(Json::object()) + " | " + json({{"type", "number"}}) +
                   R"( | "true" | "false" | "null" | "[" )" + several(rule) + R"( "]" | "{" )" +
                   several(pair) + R"( "}")");
  return rule;
}

std::string GemmaValues::object(const Json& schema, int depth) {
  const Json properties = schema.value("properties", Json());
  if (!properties.is_null() && !properties.is_object()) {
    throw ConstraintError(std::string("no JSON schema of an object: its properties are a ") +
                          properties.type_name());
  }
  const Json required = schema.value("required", Json::array());
  std::vector<std::pair<std::string, Member>> members;  // as the template sorts them
  const Json listed = properties.is_null() ? Json::object() : properties;
  for (const auto& [key, part] : listed.items()) {
    members.push_back({key,
                       {literal(plain(key)) + " \":\" " + value(part, depth + 1),
                        std::ranges::count(required, Json(key)) == 0}});
  }
  std::ranges::sort(members, {}, [](const auto& member) { return member.first; });
  std::vector<Member> sorted;
  for (auto& member : members) sorted.push_back(std::move(member.second));
  const bool is_open = depth > 0 && !schema.contains("properties");
  const Json more = schema.value("additionalProperties", Json(is_open));
  const bool has_more = more != false && !(more.is_object() && more.empty());
  const std::string pair =
      has_more ? "(/[A-Za-z0-9_]+/ \":\" " + value(more, depth + 1) + ")" : std::string();
  return "(\"{\"" + in_order(sorted, pair, "\",\"") + " \"}\")";
}

}  // namespace

Lines CallGrammarWriter::value_rules(const std::string& i, const Json& function) const {
  Json schema = function.value("parameters", Json());
  if (schema.is_null()) schema = Json::object();
  const std::string name = function["name"].get<std::string>();
  if (form_.kind == Kind::kGemma) {
    const std::string quote = "<|\"|>";
    GemmaValues values(i, schema, token(quote), !added_.contains(quote));
    const std::string object = values.object(schema, 0);
    Lines lines = values.take_lines();
    lines.insert(lines.begin(), "rest_" + i + ": " + literal(name) + " " + object);
    return lines;
  }
  const Json closed = arguments_of(function);
  const Json properties = closed.value("properties", Json::object());
  const Json required = closed.value("required", Json::array());
  std::vector<Member> members;
  Lines lines;
  for (const auto& [key, part] : properties.items()) {
    const std::string number = i + "_" + std::to_string(members.size());
    const std::vector<std::string> types = types_of(part, closed);
    Json written = resolved(part, closed);
    for (const char* each : {"$defs", "definitions"}) {
      if (closed.contains(each)) written[each] = closed[each];
    }
    const bool is_boolean = types == std::vector<std::string>{"boolean"};
    lines.push_back("value_" + number + ": " +
                    (is_boolean ? R"("True" | "False")" : "%json " + with_blanks(written).dump()));
    members.push_back({literal(plain(key) + "=") + " value_" + number,
                       std::ranges::count(required, Json(key)) == 0});
  }
  std::string more;
  if (closed.value("additionalProperties", Json(false)) != false) {
    more = "(/[a-z_]+=/ other_" + i + ")";
    lines.push_back("other_" + i + ": %json {}");
  }
  lines.insert(lines.begin(), "rest_" + i + ": " + literal(name + "(") +
                                  in_order(members, more, "/, ?/") + " " + literal(")"));
  return lines;
}

}  // namespace dendrite::chats
