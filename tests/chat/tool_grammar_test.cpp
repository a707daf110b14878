// What an answer with tools must be, in every form in which templates write calls.
#include "dendrite/tool_grammar.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "chat/chat_support.h"
#include "dendrite/chat.h"
#include "support/temporary_folder.h"

namespace dendrite::test {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

const char* const kForeign = R"([
  {"type": "function", "function": {"name": "plan", "description": "", "parameters": {
    "type": "object",
    "properties": {
      "city": {"type": "string", "maxLength": 8}, "when": {"$ref": "#/$defs/When"},
      "days": {"type": "integer", "minimum": 0, "maximum": 30},
      "unit": {"anyOf": [{"enum": ["C", "F"], "type": "string"}, {"type": "null"}]},
      "stops": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3}},
    "required": ["city", "when", "unit"],
    "$defs": {"When": {"enum": ["now", "later"], "type": "string"}}}}},
  {"name": "stop", "parameters": {"type": "object", "properties": {}}}])";
const std::string kAsk = R"([{"role": "user", "content": "Will it rain in Rome today?"}])";
const std::string kJsonCall = R"({{ {"name": f.name, "KEY": f.arguments} | tojson }})";
const std::string kFunctionCall =
    "<function={{ f.name }}>\n{%- for key, value in f.arguments.items() -%}"
    "<parameter={{ key }}>\n{{ value }}\n</parameter>\n{%- endfor -%}</function>";

std::string with_key(const char* key) {
  std::string call = kJsonCall;
  return call.replace(call.find("KEY"), 3, key);
}

/// dendrite-tools with a template, and with tags as tokens of their own where `tags` says so.
class Copy {
 public:
  explicit Copy(const std::string& chat_template, bool tags = false, bool decoder = true) {
    const fs::path model = model_path("dendrite-tools");
    for (const auto& entry : fs::directory_iterator(model)) {
      const fs::path name = entry.path().filename();
      if (name != "chat_template.jinja" && name != "tokenizer.json") {
        fs::create_symlink(fs::absolute(entry.path()), folder_.path() / name);
      }
    }
    std::ofstream(folder_.path() / "chat_template.jinja") << chat_template;
    Json tokenizer = Json::parse(std::ifstream(model / "tokenizer.json"));
    if (!decoder) tokenizer["decoder"] = nullptr;
    int next = 0;
    for (Json& token : tokenizer["added_tokens"]) {
      const bool reserved =
          token["content"].get<std::string>().find("reserved") != std::string::npos;
      if (!tags || !reserved || next == 2) continue;
      token["content"] = next++ == 0 ? "<tool_call>" : "</tool_call>";
      token["special"] = false;
    }
    std::ofstream(folder_.path() / "tokenizer.json") << tokenizer.dump();
    engine_.emplace(load(folder_.path().string()));
  }
  const Engine& engine() const { return *engine_; }

 private:
  TemporaryFolder folder_;
  std::optional<Engine> engine_;
};

struct Family {
  const char* name;
  std::string call;
  bool tags;
  CallForm form;
};

const Family kFamilies[] = {
    {"Json", with_key("arguments"), false, {}},
    {"Parameters", with_key("parameters"), false, {.key = "parameters"}},
    {"Tagged", "<tool_call>\n" + with_key("arguments") + "\n</tool_call>", true, {.tag = true}},
    {"Spelt", "<tool_call>\n" + with_key("arguments") + "\n</tool_call>", false, {.tag = true}},
    {"Function",
     "<tool_call>\n" + kFunctionCall + "\n</tool_call>",
     true,
     {.tag = true, .function = true}},
    {"Bare", kFunctionCall, false, {.function = true}},
};

class ToolGrammarFamilies : public testing::TestWithParam<Family> {
 protected:
  Copy copy_{
      "{{- bos_token -}}{%- for m in messages -%}{%- if m.tool_calls -%}"
      "{%- for c in m.tool_calls -%}{%- set f = c.function -%}" +
          GetParam().call +
          "{%- endfor -%}{%- elif m.role == 'user' -%}{{- '<|call|>' + m.content + '\\n' -}}"
          "{%- endif -%}{%- endfor -%}",
      GetParam().tags};
};

/// That they are what the schemas of kForeign ask for.
void check_calls(const std::vector<ToolCall>& calls) {
  for (const ToolCall& call : calls) {
    if (!call.complete) continue;
    const Json given = Json::parse(call.arguments);
    if (call.name == "stop") {
      EXPECT_TRUE(given.empty()) << call.arguments;
      continue;
    }
    EXPECT_EQ(call.name, "plan");
    ASSERT_TRUE(given.contains("city") && given.contains("when") && given.contains("unit"));
    EXPECT_TRUE(given["city"].is_string());
    EXPECT_TRUE(given["when"] == "now" || given["when"] == "later");
    EXPECT_TRUE(given["unit"].is_null() || given["unit"] == "C" || given["unit"] == "F");
    for (const auto& [key, value] : given.items()) {
      EXPECT_TRUE(key != "days" || (value.is_number_integer() && value <= 30)) << call.arguments;
      EXPECT_TRUE(key != "stops" || (value.is_array() && value.size() <= 3)) << call.arguments;
    }
  }
}

TEST_P(ToolGrammarFamilies, ARequiredCallIsValid) {
  const ChatModel model(copy_.engine());
  EXPECT_EQ(model.call_form(), GetParam().form);
  std::set<std::string> names;
  ChatParams params;
  params.tools_json = kForeign;
  params.tool_choice = "required";
  params.generate.n = 12;
  params.generate.decode = {.max_tokens = 300, .temperature = 2.0};
  for (const bool parallel : {false, true}) {
    params.parallel_calls = parallel;
    Session session(copy_.engine());
    const auto replies = chat(session, model, std::span(&kAsk, 1), params);
    for (const ChatReply& reply : replies.front()) {
      ASSERT_FALSE(reply.tool_calls.empty()) << reply.generation.text;
      if (!parallel) {
        EXPECT_EQ(reply.tool_calls.size(), 1u);
        EXPECT_EQ(reply.finish, Finish::kStop);
      }
      EXPECT_TRUE(reply.text.empty() || reply.finish == Finish::kLength) << reply.generation.text;
      check_calls(reply.tool_calls);
      names.insert(reply.tool_calls.front().name);
    }
  }
  EXPECT_EQ(names, (std::set<std::string>{"plan", "stop"}));
}

TEST_P(ToolGrammarFamilies, ACallThatBeginsInTextIsHeld) {
  const std::string form = GetParam().name;
  const std::string begun = form == "Json"         ? "{\"name\":"
                            : form == "Parameters" ? "\n { \"name\" :"
                            : form == "Bare"       ? "Well,\n<function="
                                                   : "Well: <tool_call>";
  const ToolGrammars grammars(copy_.engine());
  for (const bool parallel : {false, true}) {
    const ToolGrammar grammar = grammars.of(kForeign, {.parallel = parallel});
    ASSERT_TRUE(grammar.constraint.has_value());
    Session session(copy_.engine());
    Branch root = session.prefill("<|call|>Will it rain in Rome today?\n");
    root.constrain(*grammar.constraint);
    root.append(begun);
    std::vector<Branch> forks = root.fork(12);
    session.decode(forks, {.max_tokens = 300, .temperature = 2.0});
    for (const Branch& branch : forks) {
      const ParsedReply reply = parse_tool_calls(branch.text(), kForeign);
      EXPECT_FALSE(reply.calls.empty()) << branch.text();
      EXPECT_TRUE(parallel || (branch.finish() == Finish::kStop && reply.calls.size() == 1));
      check_calls(reply.calls);
    }
  }
}

TEST_P(ToolGrammarFamilies, AToolThatCannotBeCompiledIsNamedAndTakesNoOtherWithIt) {
  const ToolGrammars grammars(copy_.engine());
  const Constraint held = *grammars.of(kForeign, {.required = true}).constraint;
  const char* odd =
      R"({"name": "odd", "parameters": {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": true}}}})";
  const char* broken = R"({"name": "odd", "parameters": {"type": "object", "properties": [1]}})";
  for (const char* wrong : {odd, broken}) {
    Json tools = Json::parse(kForeign);
    tools.insert(tools.begin(), Json::parse(wrong));
    const ToolGrammar without = grammars.of(tools.dump(), {.required = true});
    EXPECT_EQ(without.constraint, held);
    ASSERT_EQ(without.warnings.size(), 1u);
    EXPECT_TRUE(without.warnings[0].starts_with("tool \"odd\": ")) << without.warnings[0];
    EXPECT_TRUE(without.warnings[0].ends_with("; it is left out")) << without.warnings[0];
    const ToolGrammar with = grammars.of(tools.dump(), {});
    ASSERT_EQ(with.warnings.size(), 1u);
    EXPECT_TRUE(with.warnings[0].ends_with("; it may be called with any arguments"));
    EXPECT_EQ(with.constraint->text().find("uniqueItems"), std::string::npos);
    EXPECT_NE(with.constraint->text().find("odd"), std::string::npos);
    const std::string alone = "[" + std::string(wrong) + "]";
    EXPECT_THROW(grammars.of(alone, {.required = true}), ConstraintError);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, ToolGrammarFamilies, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ToolGrammars, TheFormIsSeenInRealTemplates) {
  const fs::path templates = fs::path(DENDRITE_TEST_DATA) / "text/templates";
  const std::vector<std::pair<const char*, CallForm>> cases = {
      {"qwen25", {.tag = true}},
      {"qwen3", {.tag = true}},
      {"llama31_tools", {.key = "parameters"}},
      {"llama3", {}},
      {"gpt_oss", {}}};
  for (const auto& [name, form] : cases) {
    std::ostringstream text;
    text << std::ifstream(templates / name / "chat_template.jinja").rdbuf();
    EXPECT_EQ(call_form_of(Copy(text.str()).engine()), form) << name;
  }
}

TEST(ToolGrammars, AModelThatCannotBeConstrainedAnswersFreely) {
  const Copy copy("{{- bos_token + '<|call|>' + messages[-1].content + '\\n' -}}", false, false);
  const ToolGrammars grammars(copy.engine());
  EXPECT_FALSE(grammars.of(kForeign, {}).constraint.has_value());
  EXPECT_THROW(grammars.of(kForeign, {.required = true}), ConstraintError);
  EXPECT_TRUE(error_of([&] { grammars.of("[]", {}); }).starts_with("tools: there are none"));
}

TEST(ToolGrammars, AnAnswerThatIsHeldFromItsStartDoesNotThinkFirst) {
  const Copy copy("{{- bos_token + messages[-1].content + '\\n<think>\\n' -}}");
  const ChatModel model(copy.engine());
  const auto prompt_of = [&](const ChatParams& params) {
    return copy.engine().decode(model.request(kAsk, params).prompt);
  };
  ChatParams params;
  EXPECT_TRUE(prompt_of(params).ends_with("\n<think>\n"));
  params.tools_json = kForeign;
  EXPECT_TRUE(prompt_of(params).ends_with("\n<think>\n"));
  params.tool_choice = "required";
  EXPECT_TRUE(prompt_of(params).ends_with("<think>\n\n</think>\n\n"));
  params = {};
  params.generate.decode.constraint = Constraint::json_object();
  EXPECT_TRUE(prompt_of(params).ends_with("<think>\n\n</think>\n\n"));
}

}  // namespace
}  // namespace dendrite::test
