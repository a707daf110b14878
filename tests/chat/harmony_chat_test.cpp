// Chats of a model that writes Harmony: its prompts, what its answers must be, and what is read.
#include <nlohmann/json.hpp>

#include "chat/chat_support.h"
#include "chat/chat_texts.h"
#include "chat/harmony_chat.h"
#include "dendrite/chat.h"
#include "support/harmony_model.h"
#include "support/json_object.h"

namespace dendrite::test {
namespace {

using Json = nlohmann::ordered_json;

const std::string kThink = "<|channel|>analysis<|message|>";
const std::string kFinal = "<|channel|>final<|message|>";
const std::string kNext = "<|end|><|start|>assistant";

std::string ask(const std::string& text) {
  return Json::array({{{"role", "user"}, {"content", HarmonyModel::asking_for(text)}}}).dump();
}

class HarmonyChat : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new HarmonyModel();
    engine_ = new Engine(load(folder_->path()));
    model_ = new ChatModel(*engine_);
  }
  static void TearDownTestSuite() {
    delete model_;
    delete engine_;
    delete folder_;
  }
  const ChatModel& model() { return *model_; }
  std::vector<ChatReply> reply(const std::string& messages, const ChatParams& params = {}) {
    Session session(*engine_);
    return chat(session, model(), std::span(&messages, 1), params).front();
  }
  std::string prompt(const std::string& messages, const ChatParams& params = {}) {
    return engine_->decode(model().request(messages, params).prompt);
  }
  static ChatParams with_tools() {
    ChatParams params;
    params.tools_json = kTools;
    return params;
  }
  static HarmonyModel* folder_;
  static Engine* engine_;
  static ChatModel* model_;
};
HarmonyModel* HarmonyChat::folder_ = nullptr;
Engine* HarmonyChat::engine_ = nullptr;
ChatModel* HarmonyChat::model_ = nullptr;

TEST_F(HarmonyChat, TheFormatIsSeenInTemplateAndTokens) {
  EXPECT_EQ(model().call_form(), CallForm{.kind = CallForm::Kind::kHarmony});
  EXPECT_FALSE(model().reasoning_tags().has_value());
  const HarmonyTokens wanted = {263, 261, 266, 262, 264, 265, std::nullopt};
  EXPECT_EQ(chats::harmony_tokens_of(*engine_), wanted);
  EXPECT_FALSE(chats::harmony_tokens_of(load("dendrite-echo")).has_value());
}

TEST_F(HarmonyChat, PartsOfAReplyAreApart) {
  const ChatReply said = reply(ask(kThink + "Sun?" + kNext + kFinal + "It rains.")).front();
  EXPECT_EQ(said.reasoning + "|" + said.text, "Sun?|It rains.");
  EXPECT_STREQ(said.finish_reason(), "stop");
  EXPECT_EQ(Json::parse(said.message_json())["reasoning_content"], "Sun?");

  const std::string call = "<|channel|>commentary to=functions.get_weather<|message|>";
  const ChatReply called =
      reply(ask(kThink + "Sun?" + kNext + call + R"({"city": "Rome"})"), with_tools()).front();
  EXPECT_EQ(called.reasoning + "|" + called.text, "Sun?|");
  EXPECT_EQ(called.tool_calls,
            (std::vector<ToolCall>{{"", "get_weather", R"({"city": "Rome"})", true}}));
  EXPECT_STREQ(called.finish_reason(), "tool_calls");

  ChatParams cut = with_tools();
  cut.generate.decode.max_tokens = 70;
  const ChatReply half =
      reply(ask(kThink + "Sun?" + kNext + call + R"({"city": "Rome"})"), cut).front();
  ASSERT_EQ(half.tool_calls.size(), 1u);
  EXPECT_TRUE(half.tool_calls[0].arguments.starts_with("{\"c")) << half.tool_calls[0].arguments;
  EXPECT_FALSE(half.tool_calls[0].complete);
  EXPECT_STREQ(half.finish_reason(), "length");
}

TEST_F(HarmonyChat, StreamsAreTheWholeReply) {
  Session session(*engine_);
  for (const double temperature : {0.0, 1.5}) {
    const ChatRequest request = model().request(ask(kThink + "a é" + kNext + kFinal + "b"), {});
    Branch branch = session.prefill(std::span<const Token>(request.prompt));
    ReplyParser parser = request.parser;
    ParsedReply streamed;
    DecodeParams decode = request.decode;
    decode.temperature = temperature;
    decode.on_token = [&](const TokenEvent& event) {
      streamed.add(parser.feed(event.token, event.text));
    };
    const Generation whole = session.decode(branch, decode);
    streamed.add(parser.finish(whole.finish));
    const ChatReply reply = model().reply(request, whole);
    EXPECT_EQ(reply.text, streamed.content);
    EXPECT_EQ(reply.reasoning, streamed.reasoning);
  }
}

/// Numbers may be larger than any that the reader takes.
bool is_json(const std::string& text) {
  try {
    return Json::parse(text).is_object();
  } catch (const Json::out_of_range&) {
    return is_json_object(text);
  } catch (const Json::parse_error&) {
    return false;
  }
}

TEST_F(HarmonyChat, ARequiredCallIsValidAndMayBeThoughtOf) {
  ChatParams params = with_tools();
  params.tool_choice = "required";
  params.generate.n = 16;
  params.generate.decode = {.max_tokens = 400, .temperature = 2.0, .logit_bias = {{264, 6.0f}}};
  int thoughts = 0;
  std::set<std::string> names;
  for (std::uint64_t seed = 0; seed < 20 && (thoughts == 0 || names.size() < 2); ++seed) {
    params.generate.decode.seed = seed;
    for (const ChatReply& each : reply(ask("x"), params)) {
      EXPECT_EQ(each.text, "");
      thoughts += each.reasoning.empty() ? 0 : 1;
      if (each.finish == Finish::kLength) continue;
      ASSERT_EQ(each.tool_calls.size(), 1u) << each.generation.text;
      EXPECT_TRUE(each.tool_calls[0].complete && is_json(each.tool_calls[0].arguments))
          << each.generation.text;
      names.insert(each.tool_calls[0].name);
    }
  }
  EXPECT_GT(thoughts, 0);
  EXPECT_EQ(names, (std::set<std::string>{"get_weather", "get_time"}));
  params.tool_choice = "get_time";
  for (const ChatReply& each : reply(ask("x"), params)) {
    if (each.finish == Finish::kLength) continue;
    EXPECT_EQ(each.tool_calls, (std::vector<ToolCall>{{"", "get_time", "{}"}}));
  }
}

TEST_F(HarmonyChat, AFreeAnswerCallsNoToolButThose) {
  const std::string call = "<|channel|>commentary to=";
  for (const char* to : {"browser.search", "functions.get_rain"}) {
    const ChatReply free = reply(ask(call + to + "<|message|>{}")).front();
    EXPECT_EQ(free.text, "{}") << to;
    for (const ChatReply& each : reply(ask(call + to + "<|message|>{}"), with_tools())) {
      for (const ToolCall& made : each.tool_calls) EXPECT_TRUE(made.name.starts_with("get_"));
    }
  }
}

TEST_F(HarmonyChat, ASchemaIsOfTheFinalMessage) {
  ChatParams params;
  params.generate.n = 8;
  params.generate.decode = {.max_tokens = 300, .temperature = 2.0, .logit_bias = {{264, 6.0f}}};
  params.generate.decode.constraint =
      Constraint::json_schema(R"({"type": "array", "items": {"type": "boolean"}, "maxItems": 2})");
  int thoughts = 0;
  for (const bool tools : {false, true}) {
    if (tools) params.tools_json = kTools;
    for (const ChatReply& each : reply(ask("x"), params)) {
      thoughts += each.reasoning.empty() ? 0 : 1;
      if (each.finish == Finish::kLength || !each.tool_calls.empty()) continue;
      EXPECT_TRUE(Json::parse(each.text, nullptr, false).is_array()) << each.generation.text;
    }
  }
  EXPECT_GT(thoughts, 0);
  params.tools_json.clear();
  params.generate.decode.constraint = Constraint::regex("[ab]{3}");
  EXPECT_TRUE(prompt(ask("x"), params).ends_with("assistant\n" + kFinal));
  for (const ChatReply& each : reply(ask("x"), params)) {
    EXPECT_EQ(each.text.find_first_not_of("ab"), std::string::npos);
    EXPECT_EQ(each.text.size() + each.reasoning.size(), 3u);
  }
}

TEST_F(HarmonyChat, MarksThatEndAnAnswerDo) {
  ChatParams params;
  params.generate.decode.logit_bias = {{265, 1e4f}};
  const ChatReply ended = reply(ask("x"), params).front();
  EXPECT_EQ(ended.generation.ids, std::vector<Token>{265});
  EXPECT_EQ(ended.finish, Finish::kStop);
  params.generate.decode.ignore_eos = true;
  params.generate.decode.max_tokens = 3;
  EXPECT_EQ(reply(ask("x"), params).front().generation.ids.size(), 3u);
}

TEST_F(HarmonyChat, ThePromptHasAllOfTheConversation) {
  const char* const messages = R"([{"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Rome, Oslo?"},
    {"role": "assistant", "content": "I look.", "reasoning_content": "Two calls.", "tool_calls": [
      {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Rome\"}"}},
      {"id": "b", "type": "function", "function": {"name": "get_time", "arguments": ""}}]},
    {"role": "tool", "tool_call_id": "b", "content": "noon"},
    {"role": "tool", "tool_call_id": "a", "content": "wet"},
    {"role": "developer", "content": "In French."}])";
  ChatParams params = with_tools();
  params.template_json = R"({"reasoning_effort": "xhigh"})";
  const std::string text = prompt(messages, params);
  EXPECT_EQ(text,
            "<|im_start|>system\nReasoning: high; 4\n// \ntype get_weather\n// \ntype get_time\n"
            "<|im_end|>\n<|im_start|>system\nBe brief.\nIn French.<|im_end|>\n"
            "<|im_start|>user\nRome, Oslo?<|im_end|>\n"
            "<|start|>assistant<|channel|>analysis<|message|>Two calls.\n\nI look.<|end|>"
            "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
            R"({"city": "Rome"}<|call|>)"
            "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>\"wet\""
            "<|end|><|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>"
            "{}<|call|><|start|>functions.get_time to=assistant<|channel|>commentary<|message|>"
            "\"noon\"<|end|><|im_start|>assistant\n");
  const auto effort = [&](const char* variables) {
    return Json::parse(chats::variables_for_harmony(variables))["reasoning_effort"];
  };
  EXPECT_EQ(effort(R"({"reasoning_effort": "none"})"), "low");
  EXPECT_EQ(effort(R"({"enable_thinking": false})"), "low");
  EXPECT_EQ(effort(R"({"enable_thinking": false, "reasoning_effort": "medium"})"), "medium");
  EXPECT_EQ(chats::variables_for_harmony(""), "");
  params.template_json = "{";
  EXPECT_THROW(prompt(messages, params), Error);
}

}  // namespace
}  // namespace dendrite::test
