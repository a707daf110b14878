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

/// dendrite-tools with a template, and with tags as tokens of their own.
class Copy {
 public:
  explicit Copy(const std::string& chat_template, const std::vector<std::string>& tokens = {},
                bool special = false, bool decoder = true) {
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
    std::size_t next = 0;
    for (Json& token : tokenizer["added_tokens"]) {
      const bool reserved =
          token["content"].get<std::string>().find("reserved") != std::string::npos;
      if (!reserved || next == tokens.size()) continue;
      token["content"] = tokens[next++];
      token["special"] = special;
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
  std::vector<std::string> tokens;  // tags that are tokens of their own
  CallForm form;
  bool special = false;  // ... which are no text
};

using Kind = CallForm::Kind;

const std::string kKeysCall =
    "<tool_call>{{ f.name }}NL{%- for key, value in f.arguments.items() -%}"
    "<arg_key>{{ key }}</arg_key>NL<arg_value>{{ value }}</arg_value>NL{%- endfor -%}</tool_call>";
const std::string kGemmaCall =
    "<|tool_call>call:{{ f.name }}{{ '{' }}{%- for key, value in f.arguments.items() -%}"
    "{{ ',' if not loop.first }}{{ key }}:<|\"|>{{ value }}<|\"|>{%- endfor -%}{{ '}' "
    "}}<tool_call|>";
const std::string kInvokeCall =
    "<minimax:tool_call>\n<invoke name=\"{{ f.name }}\">\n{%- for key, value in "
    "f.arguments.items() "
    "-%}<parameter name=\"{{ key }}\">{{ value }}</parameter>\n{%- endfor -%}</invoke>\n"
    "</minimax:tool_call>";
const std::string kPythonCall =
    "<|tool_call_start|>[{{ f.name }}({%- for key, value in f.arguments.items() -%}"
    "{{ ', ' if not loop.first }}{{ key }}={{ value | tojson }}{%- endfor -%})]<|tool_call_end|>";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string between(const char* open, const std::string& call, const char* close) {
  return open + call + close;
}

const std::vector<std::string> kTags = {"<tool_call>", "</tool_call>"};
const std::vector<std::string> kKeysTags = {"<tool_call>", "</tool_call>", "<arg_key>",
                                            "</arg_key>",  "<arg_value>",  "</arg_value>"};
const std::vector<std::string> kGemmaTags = {"<|tool_call>", "<tool_call|>", "<|\"|>"};
const std::vector<std::string> kMistralTags = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"};

const Family kFamilies[] = {
    {"Json", with_key("arguments"), {}, {}},
    {"Parameters", with_key("parameters"), {}, {.key = "parameters"}},
    {"Tagged",
     "<tool_call>\n" + with_key("arguments") + "\n</tool_call>",
     kTags,
     {.open = "<tool_call>", .close = "</tool_call>"}},
    {"Spelt",
     "<tool_call>\n" + with_key("arguments") + "\n</tool_call>",
     {},
     {.open = "<tool_call>", .close = "</tool_call>"}},
    {"Function",
     "<tool_call>\n" + kFunctionCall + "\n</tool_call>",
     kTags,
     {.kind = Kind::kFunction, .open = "<tool_call>", .close = "</tool_call>"}},
    {"Bare", kFunctionCall, {}, {.kind = Kind::kFunction}},
    {"Seed",
     replaced("<seed:tool_call>\n" + kFunctionCall + "\n</seed:tool_call>", "\n{{ value }}\n",
              "{{ value }}"),
     {"<seed:tool_call>", "</seed:tool_call>"},
     {.kind = Kind::kFunction,
      .open = "<seed:tool_call>",
      .close = "</seed:tool_call>",
      .lines = false}},
    {"Minimax",
     kInvokeCall,
     {"<minimax:tool_call>", "</minimax:tool_call>"},
     {.kind = Kind::kInvoke, .open = "<minimax:tool_call>", .close = "</minimax:tool_call>"}},
    {"Glm45",
     replaced(kKeysCall, "NL", "{{ '\n' }}"),
     kKeysTags,
     {.kind = Kind::kKeys, .open = "<tool_call>", .close = "</tool_call>"}},
    {"Glm47",
     replaced(kKeysCall, "NL", ""),
     kKeysTags,
     {.kind = Kind::kKeys, .open = "<tool_call>", .close = "</tool_call>", .lines = false}},
    {"GlmSpelt",
     replaced(kKeysCall, "NL", "{{ '\n' }}"),
     {},
     {.kind = Kind::kKeys, .open = "<tool_call>", .close = "</tool_call>"}},
    {"Mistral",
     "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}",
     kMistralTags,
     {.kind = Kind::kNamed, .open = "[TOOL_CALLS]"},
     true},
    {"MistralIds",
     "[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}",
     kMistralTags,
     {.kind = Kind::kNamed, .open = "[TOOL_CALLS]", .id = true},
     true},
    {"MistralList",
     "[TOOL_CALLS] [" + with_key("arguments") + "]",
     kMistralTags,
     {.open = "[TOOL_CALLS]", .list = true},
     true},
    {"Phi4",
     between("<|tool_call|>", with_key("arguments"), "<|/tool_call|>"),
     {"<|tool_call|>", "<|/tool_call|>"},
     {.open = "<|tool_call|>", .close = "<|/tool_call|>"},
     true},
    {"Gemma4",
     kGemmaCall,
     kGemmaTags,
     {.kind = Kind::kGemma, .open = "<|tool_call>", .close = "<tool_call|>", .results = true},
     true},
    {"GemmaSpelt",
     kGemmaCall,
     {},
     {.kind = Kind::kGemma, .open = "<|tool_call>", .close = "<tool_call|>", .results = true}},
    {"Lfm2",
     kPythonCall,
     {"<|tool_call_start|>", "<|tool_call_end|>"},
     {.kind = Kind::kPython, .open = "<|tool_call_start|>", .close = "<|tool_call_end|>"},
     true},
};

class ToolGrammarFamilies : public testing::TestWithParam<Family> {
 protected:
  Copy copy_{
      "{{- bos_token -}}{%- for m in messages -%}{%- if m.tool_calls -%}"
      "{%- for c in m.tool_calls -%}{%- set f = c.function -%}" +
          GetParam().call +
          "{%- endfor -%}{%- elif m.role == 'user' -%}{{- '<|call|>' + m.content + '\\n' -}}"
          "{%- endif -%}{%- endfor -%}",
      GetParam().tokens, GetParam().special};
};

/// What a branch says, with tokens that are no text.
ParsedReply read(const Engine& engine, const Branch& branch) {
  const std::vector<Token> tokens = branch.tokens();
  const auto said = std::span(tokens).subspan(static_cast<std::size_t>(branch.prompt_length()));
  return parse_tool_calls(engine.decode(said, false), kForeign, branch.finish() == Finish::kLength);
}

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
    ASSERT_TRUE(given.contains("city") && given.contains("when") && given.contains("unit"))
        << call.arguments;
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
  params.generate.decode = {.max_tokens = 600, .temperature = 3.0};
  for (std::uint64_t seed = 0; seed < 20 && (seed < 2 || names.size() < 2); ++seed) {
    const bool parallel = seed % 2 == 1;
    params.parallel_calls = parallel;
    params.generate.decode.seed = seed;
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
      for (const ToolCall& call : reply.tool_calls) names.insert(call.name);
    }
  }
  EXPECT_EQ(names, (std::set<std::string>{"plan", "stop"}));
}

TEST_P(ToolGrammarFamilies, ACallThatBeginsInTextIsHeld) {
  const std::string name = GetParam().name;
  const std::string open = GetParam().form.open;
  const std::string begun = name == "Json"         ? "{\"name\":"
                            : name == "Parameters" ? "\n { \"name\" :"
                            : name == "Bare"       ? "Well,\n<function="
                                                   : "Well: " + open;
  const ToolGrammars grammars(copy_.engine());
  for (const bool parallel : {false, true}) {
    const ToolGrammar grammar = grammars.of(kForeign, {.parallel = parallel});
    ASSERT_TRUE(grammar.constraint.has_value());
    Session session(copy_.engine());
    Branch root = session.prefill("<|call|>Will it rain in Rome today?\n");
    root.constrain(*grammar.constraint);
    root.append(begun);
    std::vector<Branch> forks = root.fork(12);
    session.decode(forks, {.max_tokens = 600, .temperature = 2.0});
    for (const Branch& branch : forks) {
      const ParsedReply reply = read(copy_.engine(), branch);
      EXPECT_FALSE(reply.calls.empty()) << branch.text();
      EXPECT_TRUE(parallel || (branch.finish() == Finish::kStop && reply.calls.size() == 1))
          << branch.text();
      check_calls(reply.calls);
    }
  }
}

TEST_P(ToolGrammarFamilies, AConversationGoesOnWithTheCallAsItWasWritten) {
  const ToolCall call{"call_0123456789abcdef01234567", "plan",
                      R"({"city": "Rome, \"Lido\"", "unit": "C", "when": "now"})"};
  ChatReply reply;
  reply.tool_calls = {call};
  const std::string conversation =
      "[" + kAsk.substr(1, kAsk.size() - 2) + ", " + reply.message_json() +
      R"(, {"role": "tool", "tool_call_id": ")" + call.id + R"(", "content": "sun"}])";
  const ChatRequest request =
      ChatModel(copy_.engine()).request(conversation, {.tools_json = kForeign});
  const std::string prompt = copy_.engine().decode(request.prompt, false);
  const std::size_t begin = prompt.find('\n') + 1;  // behind what was asked
  const ParsedReply read = parse_tool_calls(prompt.substr(begin), kForeign);
  ASSERT_EQ(read.calls.size(), 1u) << prompt;
  EXPECT_EQ(read.calls[0].name, "plan");
  EXPECT_TRUE(read.calls[0].complete);
  EXPECT_EQ(Json::parse(read.calls[0].arguments), Json::parse(call.arguments)) << prompt;
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
      {"qwen25", {.open = "<tool_call>", .close = "</tool_call>"}},
      {"qwen3", {.open = "<tool_call>", .close = "</tool_call>"}},
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
  const Copy copy("{{- bos_token + '<|call|>' + messages[-1].content + '\\n' -}}", {}, false,
                  false);
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
