// Calls as families write them that have a form of their own: the same however the text is cut, and
// content where they are none.
#include <nlohmann/json.hpp>

#include "chat/chat_texts.h"
#include "chat/messages.h"
#include "dendrite/chat.h"
#include "dendrite/error.h"

namespace dendrite::test {
namespace {

const std::string kOslo = R"(get_weather {"city": "Oslo"}])";

std::string of(const std::vector<std::string>& pieces, bool cut_short = false) {
  static const ToolCallParser kParser(kTools);
  return parsed(kParser, pieces, cut_short);
}

std::string keys(const std::string& key, const std::string& value, const char* line = "\n") {
  return "<arg_key>" + key + "</arg_key>" + line + "<arg_value>" + value + "</arg_value>" + line;
}

std::string gemma(const std::string& members) {
  return "<|tool_call>call:get_weather{" + members + "}<tool_call|>";
}

std::string weather(const std::string& arguments) {
  return "[0get_weather " + arguments + "]";
}

struct Case {
  const char* name;
  std::string text, seen;
};

const Case kCases[] = {
    // GLM
    {"Glm",
     "So.\n<tool_call>get_weather\n" + keys("city", "Oslo") + keys("days", "3") + "</tool_call>\n",
     R"('So.[0get_weather {"city": "Oslo", "days": 3}])"},
    {"GlmWithoutLines",
     "<tool_call>get_weather" + keys("city", "\nOslo ", "") + keys("wet", "true", "") +
         "</tool_call><tool_call>get_time</tool_call>",
     R"([0get_weather {"city": "\nOslo ", "wet": true}][1get_time {}])"},
    {"GlmWithJson",
     "<tool_call>get_weather" + keys("tags", R"(["a", 1])", "") + keys("unit", "null", "") +
         keys("else", "7", "") + "</tool_call>",
     weather(R"({"tags": ["a", 1], "unit": null, "else": "7"})")},
    {"GlmUnknownTool", "<tool_call>get\n" + keys("a", "b") + "</tool_call>",
     "'<tool_call>get\n" + keys("a", "b") + "</tool_call>"},
    {"GlmInTalk", "Write <tool_call>get_time and more", "'Write <tool_call>get_time and more"},
    {"GlmCut", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Os",
     R"([0get_weather {"city": "Os"}])"},
    {"GlmKeyWithoutValue", "<tool_call>get_weather\n<arg_key>city</arg_key></tool_call>.",
     "[0get_weather {}]'."},
    {"GlmTagsInValue",
     "<tool_call>get_weather" + keys("city", "<b></arg_valu</arg_keys>", "") + "</tool_call>",
     weather(R"({"city": "<b></arg_valu</arg_keys>"})")},
    // MiniMax
    {"Minimax",
     "Look.\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
     "name=\"city\">Oslo</parameter>\n"
     "<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"get_time\">\n</invoke>\n"
     "</minimax:tool_call>",
     R"('Look.[0get_weather {"city": "Oslo", "days": 3}][1get_time {}])"},
    {"MinimaxUnknownTool", "<minimax:tool_call>\n<invoke name=\"fly\">\n</invoke>",
     "'<minimax:tool_call>\n<invoke name=\"fly\">\n</invoke>"},
    {"MinimaxBrokenName", "<invoke name=\"get_time\" >", "'<invoke name=\"get_time\" >"},
    // Seed-OSS
    {"Seed",
     "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Oslo</parameter>\n</function>\n"
     "</seed:tool_call>",
     "[0" + kOslo},
    {"SeedWithoutCall", "<seed:tool_call>\nno", "'<seed:tool_call>\nno"},
    // Mistral
    {"Mistral", R"(Hm.[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"})", "'Hm.[0" + kOslo},
    {"MistralTwice",
     R"([TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]get_time[ARGS] {})",
     "[0" + kOslo + "[1get_time {}]"},
    {"MistralIds", R"([TOOL_CALLS]get_weather[CALL_ID]abc123XYZ[ARGS]{"city": "Oslo"} .)",
     "[0" + kOslo + "' ."},
    {"MistralBare", R"([TOOL_CALLS]get_weather{"city": "Oslo"})", "[0" + kOslo},
    {"MistralUnknown", "[TOOL_CALLS]fly[ARGS]{}", "'[TOOL_CALLS]fly[ARGS]{}"},
    {"MistralNoObject", "[TOOL_CALLS]get_time[ARGS][]", "'[TOOL_CALLS]get_time[ARGS][]"},
    {"MistralMarks", "[TOOL_CALLS]get_time[TOOL_CALLS]get_time[ARGS]{}",
     "'[TOOL_CALLS]get_time[0get_time {}]"},
    {"MistralBroken", R"([TOOL_CALLS]get_weather[ARGS]{"city" "Oslo"})",
     R"([0get_weather {"city" !]'"Oslo"})"},
    {"MistralCut", R"([TOOL_CALLS]get_weather[ARGS]{"city": "Os)",
     R"([0get_weather {"city": "Os!])"},
    {"MistralBrackets", "[TOOL] [[TOOL_CALLS", "'[TOOL] [[TOOL_CALLS"},
    // Phi-4, Granite 3
    {"Phi",
     "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": "
     "\"Oslo\"}}]<|/tool_call|>",
     "[0" + kOslo},
    {"PhiOne", "Yes <|tool_call|>{\"name\": \"get_time\", \"arguments\": {}}<|/tool_call|>",
     "'Yes[0get_time {}]"},
    {"PhiNoJson", "<|tool_call|>get_time", "'<|tool_call|>get_time"},
    // Gemma 4
    {"Gemma", "Well.\n" + gemma(R"(city:<|"|>Oslo<|"|>,days:3)"),
     R"('Well.[0get_weather {"city": "Oslo", "days": 3}])"},
    {"GemmaEmpty", "<|tool_call>call:get_time{}<tool_call|>" + gemma(""),
     "[0get_time {}][1get_weather {}]"},
    {"GemmaNested",
     gemma(R"(more:{a:[1,-2.5e3,<|"|>x,}]<|"|>,[],{}],b:{c:true,d:null}},wet:false)"),
     weather(
         R"({"more": {"a": [1, -2.5e3, "x,}]", [], {}], "b": {"c": true, "d": null}}, "wet": false})")},
    {"GemmaTexts", gemma(R"(city:<|"|>a "b" \ <|x <|"|>,tags:[<|"|><|"|>,<|"|>
<|"|>])"),
     weather(R"({"city": "a \"b\" \\ <|x ", "tags": ["", "\n"]})")},
    {"GemmaWords", gemma("city:Oslo at night, days: 3 ,wet:True,unit:None,a:<b>"),
     weather(R"({"city": "Oslo at night", "days": 3, "wet": true, "unit": null, "a": "<b>"})")},
    {"GemmaQuotedKeys", gemma(R"(<|"|>a:b<|"|>:1,"c" : "d\"\q\n")"),
     weather(R"({"a:b": 1, "c": "d\"\\q\n"})")},
    {"GemmaCommas", gemma("tags:[1,],days:2,"), weather(R"({"tags": [1], "days": 2})")},
    {"GemmaUnknownTool", "<|tool_call>call:fly{}<tool_call|>",
     "'<|tool_call>call:fly{}<tool_call|>"},
    {"GemmaNoCall", "<|tool_call>calling get_time{}", "'<|tool_call>calling get_time{}"},
    {"GemmaBroken", gemma("city:,days:1"), R"([0get_weather {"city": !]',days:1}<tool_call|>)"},
    {"GemmaWrongBracket", gemma("tags:[1}"), R"([0get_weather {"tags": [1!]'}}<tool_call|>)"},
    {"GemmaCut", R"(<|tool_call>call:get_weather{city:<|"|>Os<|)",
     R"([0get_weather {"city": "Os!])"},
    // LFM2
    {"Lfm",
     R"(<|tool_call_start|>[get_weather(city="Oslo", days=3), get_time()]<|tool_call_end|>Looking.)",
     R"([0get_weather {"city": "Oslo", "days": 3}][1get_time {}]'Looking.)"},
    {"LfmLiterals",
     R"(<|tool_call_start|>[get_weather(city='a, (b)\'', tags=[1, 'x', None], more={'k': True}, wet=False)])",
     weather(R"({"city": "a, (b)'", "tags": [1, "x", null], "more": {"k": true}, "wet": false})")},
    {"LfmWithoutList", "<|tool_call_start|>get_time()<|tool_call_end|>", "[0get_time {}]"},
    {"LfmJson",
     R"(<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]<|tool_call_end|>)",
     "[0" + kOslo},
    {"LfmPosition", R"(<|tool_call_start|>[get_weather("Oslo")]<|tool_call_end|>)",
     R"('<|tool_call_start|>[get_weather("Oslo")]<|tool_call_end|>)"},
    {"LfmExpression", "<|tool_call_start|>[get_weather(days=1 + x)]",
     "'<|tool_call_start|>[get_weather(days=1 + x)]"},
    {"LfmSecondIsNone", "<|tool_call_start|>[get_time(), fly()]", "[0get_time {}]', fly()]"},
    {"LfmCut", R"(<|tool_call_start|>[get_weather(city="Os)",
     R"('<|tool_call_start|>[get_weather(city="Os)"},
};

class CallFormats : public testing::TestWithParam<Case> {};

TEST_P(CallFormats, AreTheSameForAnyCutting) {
  EXPECT_EQ(of({GetParam().text}), GetParam().seen);
  expect_same_for_all_cuttings(GetParam().text, [](const auto& pieces) { return of(pieces); });
  expect_same_for_all_cuttings(GetParam().text,
                               [](const auto& pieces) { return of(pieces, true); });
}

INSTANTIATE_TEST_SUITE_P(Cases, CallFormats, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Texts of parts of all formats, right and wrong: a call that is complete has arguments that are
// JSON, and of a text without calls nothing is lost.
TEST(CallFormatsAtRandom, AreTheSameForAnyCutting) {
  std::vector<std::string> parts = {"<tool_call>",
                                    "</tool_call>",
                                    "get_time",
                                    "get_weather",
                                    "<arg_key>",
                                    "</arg_key>",
                                    "<arg_value>",
                                    "</arg_value>",
                                    "city",
                                    "days",
                                    "<invoke name=\"",
                                    "\">",
                                    "</invoke>",
                                    "<parameter name=\"",
                                    "</parameter>",
                                    "[TOOL_CALLS]",
                                    "[ARGS]",
                                    "[CALL_ID]",
                                    "{",
                                    "}",
                                    "[",
                                    "]",
                                    "(",
                                    ")",
                                    "=",
                                    ",",
                                    ":",
                                    "\"",
                                    "'",
                                    "\\",
                                    "<|tool_call>",
                                    "<tool_call|>",
                                    "call:",
                                    "<|\"|>",
                                    "<|tool_call_start|>",
                                    "<|tool_call|>",
                                    "7",
                                    "é",
                                    "\n",
                                    "<seed:tool_call>",
                                    "<minimax:tool_call>"};
  for (const Case& each : kCases) parts.push_back(each.text.substr(0, each.text.size() / 2));
  for (const Case& each : kCases) parts.push_back(each.text);
  std::mt19937 draw(5);
  int calls = 0;
  for (int i = 0; i < 400; ++i) {
    std::string text;
    for (auto size = draw() % 8; size > 0; --size) text += parts[draw() % parts.size()];
    SCOPED_TRACE(text);
    const std::string wanted = of({text});
    std::vector<std::string> bytes;
    for (const char c : text) bytes.emplace_back(1, c);
    EXPECT_EQ(of(bytes), wanted);
    const ParsedReply reply = parse_tool_calls(text, kTools);
    for (const ToolCall& each : reply.calls) {
      ++calls;
      EXPECT_TRUE(!each.complete || nlohmann::json::accept(each.arguments)) << each.arguments;
    }
    if (reply.calls.empty()) {
      EXPECT_EQ(reply.content, text);
    }
  }
  EXPECT_GT(calls, 100);
}

TEST(CallFormatsStreamed, ArgumentsComeAsTheyAreWritten) {
  ToolCallParser parser(kTools);
  EXPECT_EQ(shown(parser.feed("<|tool_call>call:get_weather{city:<|\"|>Os")),
            R"([0get_weather {"city": "Os)");
  EXPECT_EQ(shown(parser.feed("lo<|")), "lo");
  EXPECT_EQ(shown(parser.feed("\"|>,days:1")), R"(", "days": )");
  EXPECT_EQ(shown(parser.feed("2}<tool_call|>")), "12}]");
  EXPECT_EQ(shown(parser.feed("[TOOL_CALLS]get_weather[ARGS]{\"ci")), R"([1get_weather {"ci)");
  EXPECT_EQ(shown(parser.feed("ty\": 1}")), R"(ty": 1}])");
  EXPECT_EQ(shown(parser.feed("<tool_call>get_weather<arg_key>city</arg_key><arg_value>Os")),
            R"([2get_weather {"city": "Os)");
}

// Marks are tokens that may be no text: what they stand for is read, and nothing of them is said.
TEST(CallMarks, AreReadWhereTheyAreTokens) {
  const std::map<Token, std::string> marks = {
      {1, "[TOOL_CALLS]"}, {2, "[ARGS]"}, {3, "<|tool_call>"}, {4, "<tool_call|>"}, {5, "<|\"|>"}};
  ReplyParser parser(ReasoningTags{"<|channel>", "<channel|>", 6, 7, "thought"}, false, kTools,
                     marks);
  EXPECT_TRUE(parser.is_mark(5) && parser.is_mark(7) && !parser.is_mark(8));
  std::vector<ReplyEvent> events;
  const std::pair<Token, const char*> told[] = {
      {6, ""},         {8, "thought"}, {8, "\nCold"},
      {8, "?"},        {7, ""},        {8, "Let"},
      {8, " me"},      {3, ""},        {8, "call:get_weather{city:"},
      {5, ""},         {8, "Oslo"},    {5, ""},
      {8, "}"},        {4, "}"},       {1, ""},
      {8, "get_time"}, {2, "[ARGS]"},  {8, "{}"}};
  for (const auto& [token, text] : told) {
    if (token == 4) continue;  // (a mark with text before it: below)
    for (ReplyEvent& each : parser.feed(token, text)) events.push_back(std::move(each));
  }
  for (ReplyEvent& each : parser.finish(Finish::kEos)) events.push_back(std::move(each));
  EXPECT_EQ(shown(events), "~Cold?'Let me[0" + kOslo + "[1get_time {}]");

  ReplyParser other(std::nullopt, false, kTools, marks);
  other.feed(3, "");
  EXPECT_EQ(shown(other.feed(4, "call:get_time{}")), "[0get_time {}]");
}

// Who reads arguments further recurses over them.
TEST(DeepArguments, AreNoJson) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const std::string messages =
      R"([{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": ")";
  EXPECT_THROW(chats::for_template(messages + deep + "\"}}]}]"), Error);
  EXPECT_THROW(chats::for_template(deep), Error);
  EXPECT_THROW(ToolCallParser{deep}, Error);
  const ParsedReply reply = parse_tool_calls(
      "<function=get_weather><parameter=tags>" + deep + "</parameter></function>", kTools);
  ASSERT_EQ(reply.calls.size(), 1u);
  EXPECT_EQ(reply.calls[0].arguments, R"({"tags": ")" + deep + "\"}");
}

TEST(DeepArguments, AreNoJsonWithACharacterZeroInThem) {
  EXPECT_EQ(of({gemma(std::string("days:1\0x", 8))}), weather(R"({"days": "1\u0000x"})"));
}

}  // namespace
}  // namespace dendrite::test
