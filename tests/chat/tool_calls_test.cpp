// Calls in text: the same however it is cut, told as soon as they are calls, and content where they
// are none.
#include "dendrite/tool_calls.h"

#include <array>
#include <set>

#include "chat/chat_texts.h"
#include "dendrite/error.h"

namespace dendrite::test {
namespace {

const std::string kOslo = call("get_weather", R"({"city": "Oslo"})");
const std::string kOsloSeen = R"(get_weather {"city": "Oslo"}])";
const std::string kFunction =
    "<function=get_weather>\n<parameter=city>\nSan\nFrancisco\n</parameter>\n<parameter=days>\n3\n"
    "</parameter>\n</function>";
const std::string kFunctionSeen = R"(get_weather {"city": "San\nFrancisco", "days": 3}])";

std::string of(const std::vector<std::string>& pieces, bool cut_short = false) {
  static const ToolCallParser kParser(kTools);
  return parsed(kParser, pieces, cut_short);
}

struct Case {
  const char* name;
  std::string text, seen;
};

const Case kCases[] = {
    {"Nothing", "", ""},
    {"Blanks", " \n", "' \n"},
    {"Text", "  It is warm.\n", "'  It is warm.\n"},
    {"One", "<tool_call>\n" + kOslo + "\n</tool_call>", "[0" + kOsloSeen},
    {"TextAround", "Let me see.\n<tool_call>" + kOslo + "</tool_call> Done.\n",
     "'Let me see.[0" + kOsloSeen + "' Done.\n"},
    {"Two",
     "<tool_call>\n" + kOslo + "\n</tool_call>\n<tool_call>" + call("get_time") + "</tool_call>\n",
     "[0" + kOsloSeen + "[1get_time {}]"},
    {"EndTagInString",
     "<tool_call>" + call("get_weather", R"({"city": "a</tool_call>b"})") + "</tool_call>",
     R"([0get_weather {"city": "a</tool_call>b"}])"},
    {"NoEndTag", "<tool_call>" + kOslo, "[0" + kOsloSeen},
    {"CutInName", R"(<tool_call>{"name": "get_we)", R"('<tool_call>{"name": "get_we)"},
    {"CutBeforeArguments", R"({"name": "get_time", "arg)", R"('{"name": "get_time", "arg)"},
    {"CutInArguments", R"({"name": "get_weather", "arguments": {"city": "Os)",
     R"([0get_weather {"city": "Os!])"},
    {"CutBehindArguments", R"({"name": "get_time", "arguments": {})", "[0get_time {}!]"},
    {"BrokenArguments", R"({"name": "get_weather", "arguments": {"city": Oslo}})",
     R"([0get_weather {"city": !]'Oslo}})"},
    {"UnknownTool", "<tool_call>" + call("fly") + "</tool_call> x",
     "'<tool_call>" + call("fly") + "</tool_call> x"},
    {"TextAndUnknownTool", "so\n<tool_call>" + call("fly") + "</tool_call>",
     "'so\n<tool_call>" + call("fly") + "</tool_call>"},
    {"BadThenGood", "<tool_call>{}</tool_call><tool_call>" + kOslo + "</tool_call>",
     "'<tool_call>{}</tool_call>[0" + kOsloSeen},
    {"GoodThenBad", "<tool_call>" + kOslo + "</tool_call>\n<tool_call>{}</tool_call>",
     "[0" + kOsloSeen + "'\n<tool_call>{}</tool_call>"},
    {"TagTwice", "<tool_call><tool_call>" + kOslo + "</tool_call>", "'<tool_call>[0" + kOsloSeen},
    {"EndTagAlone", "a </tool_call> b", "'a </tool_call> b"},
    {"LookAlikes", "a < b <tool <tool_cal", "'a < b <tool <tool_cal"},
    {"LookAlikesOfFunctions", "<tool_call>\n<func", "'<tool_call>\n<func"},
    {"Functions", "<tool_call>\n" + kFunction + "\n</tool_call>", "[0" + kFunctionSeen},
    {"BareFunction", "So:\n" + kFunction, "'So:[0" + kFunctionSeen},
    {"FunctionWithEndTagAlone", kFunction + "\n</tool_call>", "[0" + kFunctionSeen},
    {"TwoFunctionsInATag", "<tool_call>" + kFunction + kFunction + "</tool_call>",
     "[0" + kFunctionSeen + "[1" + kFunctionSeen},
    {"NoParameters", "<tool_call><function=get_time>\n</function></tool_call>", "[0get_time {}]"},
    {"FunctionWithoutItsEnd", "<tool_call><function=get_time>\n</tool_call>.", "[0get_time {}]'."},
    {"UnknownFunction", "<function=fly>\n</function>", "'<function=fly>\n</function>"},
    {"FunctionInTalk", "<function=get_time> is <function=get_time><tool_call>",
     "'<function=get_time> is <function=get_time><tool_call>"},
    {"ParameterWithoutItsEnd",
     "<function=get_weather><parameter=city>Oslo<parameter=days>3</function>",
     R"([0get_weather {"city": "Oslo", "days": 3}])"},
    {"ValueWithTags",
     "<function=get_weather><parameter=city>\na </b> </para <tool_call>\n\n</parameter></function>",
     R"([0get_weather {"city": "a </b> </para <tool_call>\n"}])"},
    {"Json", kOslo, "[0" + kOsloSeen},
    {"JsonParameters",
     "\n"
     R"({"name": "get_weather", "parameters": {"city": "Oslo"}})",
     "[0" + kOsloSeen},
    {"JsonArgumentsFirst",
     R"({"id": [7, {"name": 1}], "arguments": {"city": "Oslo"}, "name": "get_weather"})",
     "[0" + kOsloSeen},
    {"JsonSeveral", kOslo + "; " + call("get_time"), "[0" + kOsloSeen + "[1get_time {}]"},
    {"JsonArray", "[" + kOslo + ", " + call("get_time") + " ]\n",
     "[0" + kOsloSeen + "[1get_time {}]"},
    {"JsonArrayInTag", "<tool_call>[" + kOslo + "]</tool_call>", "[0" + kOsloSeen},
    {"JsonArrayCut", "[" + kOslo + ", ", "[0" + kOsloSeen},
    {"JsonArrayWithOthers", "[" + kOslo + ", 7, " + kOslo + "]",
     "[0" + kOsloSeen + "', 7, " + kOslo + "]"},
    {"JsonArrayBroken", "[" + kOslo + " and", "[0" + kOsloSeen + "' and"},
    {"JsonEmptyArray", kOslo + "[] so", "[0" + kOsloSeen + "'[] so"},
    {"JsonNoCall", R"({"answer": 42, "why": "<tool_call>"} is it)",
     R"('{"answer": 42, "why": "<tool_call>"} is it)"},
    {"JsonNoObjectOfArguments", R"({"name": "get_time", "arguments": "{}"})",
     R"('{"name": "get_time", "arguments": "{}"})"},
    {"JsonBothKeys", R"({"name": "get_time", "arguments": {}, "parameters": {"a": 1}} .)",
     "[0get_time {}!]' ."},
    {"JsonNotAtTheStart", "so " + kOslo, "'so " + kOslo},
    {"NoJson", "[1] says {nothing}", "'[1] says {nothing}"},
    {"JsonThenTag", "{ <tool_call>" + kOslo + "</tool_call>", "'{ [0" + kOsloSeen},
    {"PythonTag", "<|python_tag|>" + kOslo, "[0" + kOsloSeen},
    {"PythonTagAlone", "<|python_tag|>print(1)", "'<|python_tag|>print(1)"},
    {"MistralsTag", "[TOOL_CALLS] [" + kOslo + "]", "[0" + kOsloSeen},
    {"MistralsTagCut", "[TOOL_CA", "'[TOOL_CA"},
    {"Escapes",
     R"({"name": "get_w\u0065ather", "arguments": {"city": "\u00c5 \"\ud83d\ude00\" }{ é 😀"}})",
     R"([0get_weather {"city": "\u00c5 \"\ud83d\ude00\" }{ é 😀"}])"},
    {"LineEndsInStrings", "{\"name\": \"get_weather\", \"arguments\":\n {\"city\": \"a\n\tb\"}}",
     R"([0get_weather {"city": "a\n\tb"}])"},
    {"Numbers", call("get_weather", R"({"a": [-0.5e+3, 0, 12, true, null, [], {}], "b" : 7})"),
     R"([0get_weather {"a": [-0.5e+3, 0, 12, true, null, [], {}], "b" : 7}])"},
    {"NoEscape", call("get_weather", R"({"a": "\u00zz"})"), R"([0get_weather {"a": "\u00!]'zz"}})"},
    {"NoNumber", call("get_weather", R"({"a": 01})"), R"([0get_weather {"a": 0!]'1}})"},
};

class ToolCallTexts : public testing::TestWithParam<Case> {};

TEST_P(ToolCallTexts, AreTheSameForAnyCutting) {
  EXPECT_EQ(of({GetParam().text}), GetParam().seen);
  expect_same_for_all_cuttings(GetParam().text, [](const auto& pieces) { return of(pieces); });
  expect_same_for_all_cuttings(GetParam().text,
                               [](const auto& pieces) { return of(pieces, true); });
}

INSTANTIATE_TEST_SUITE_P(Cases, ToolCallTexts, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Texts of parts of all formats, right and wrong. Nothing but blanks, tags and separators is lost.
TEST(ToolCallParser, RandomTextsAreTheSameForAnyCutting) {
  const std::vector<std::string> parts = {"<tool_call>",
                                          "</tool_call>",
                                          "<function=",
                                          "get_time",
                                          "get_weather",
                                          ">",
                                          "</function>",
                                          "<parameter=",
                                          "city",
                                          "days",
                                          "</parameter>",
                                          "\n",
                                          " ",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ";",
                                          ":",
                                          "\"name\"",
                                          "\"get_time\"",
                                          "\"arguments\"",
                                          "\"city\"",
                                          "\"Os</tool_call>lo\"",
                                          "7",
                                          "true",
                                          "é",
                                          "<",
                                          kOslo,
                                          call("get_time"),
                                          kFunction,
                                          "so",
                                          "\\",
                                          "[TOOL_CALLS]",
                                          "<|python_tag|>",
                                          R"({"name": "get_weather", "arguments": {)"};
  std::mt19937 draw(11);
  int calls = 0;
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (auto size = draw() % 12; size > 0; --size) text += parts[draw() % parts.size()];
    SCOPED_TRACE(text);
    expect_same_for_all_cuttings(text, [](const auto& pieces) { return of(pieces); });
    const ParsedReply reply = parse_tool_calls(text, kTools);
    for (const ToolCall& each : reply.calls) {
      ++calls;
      EXPECT_EQ(each.complete, nlohmann::json::accept(each.arguments) && each.complete);
    }
    if (reply.calls.empty()) {
      EXPECT_EQ(reply.content, text);
    }
  }
  EXPECT_GT(calls, 50);
}

TEST(ToolCallParser, ContentStreamsWhileNoCallIsPossible) {
  ToolCallParser parser(kTools);
  EXPECT_EQ(shown(parser.feed("It is")), "'It is");
  EXPECT_EQ(shown(parser.feed(" warm <")), "' warm");
  EXPECT_EQ(shown(parser.feed("b")), "' <b");
  EXPECT_EQ(shown(ToolCallParser(kTools).feed("[1] is a citation")), "'[1] is a citation");
  EXPECT_EQ(shown(ToolCallParser(kTools).feed(R"({"answer": 4, )")), "");  // its name may follow
  EXPECT_EQ(shown(ToolCallParser(kTools).feed(R"({"name": "Rome", )")), R"('{"name": "Rome", )");
  for (const std::string& text :
       std::vector<std::string>{kOslo, R"({"answer": )", "<tool_call>", "["}) {
    EXPECT_EQ(shown(ToolCallParser("").feed(text)), "'" + text);  // no tool, so no call
  }
}

TEST(ToolCallParser, ArgumentsStreamOnceItIsACall) {
  ToolCallParser parser(kTools);
  EXPECT_EQ(shown(parser.feed(R"(<tool_call>{"name": "get_weather", "arguments": )")), "");
  EXPECT_EQ(shown(parser.feed("{")), "[0get_weather {");
  EXPECT_EQ(shown(parser.feed(R"("city": "Os)")), R"("city": "Os)");
  EXPECT_EQ(shown(parser.feed("lo\"}")), "lo\"}");
  EXPECT_EQ(shown(parser.feed("}")), "]");
  EXPECT_EQ(shown(parser.feed("</tool_call>\n<function=get_weather>\n")), "");
  EXPECT_EQ(shown(parser.feed("<parameter=")), "[1get_weather ");
  EXPECT_EQ(shown(parser.feed("city>\nSan")), R"({"city": "San)");
  EXPECT_EQ(shown(parser.feed("\n</param")), "");
  EXPECT_EQ(shown(parser.feed("s")), R"(\n</params)");
  EXPECT_EQ(shown(parser.feed("\n</parameter>\n<parameter=days>\n12")), R"(", "days": )");
  EXPECT_EQ(shown(parser.feed("\n</parameter></function>")), "12}]");
  EXPECT_EQ(shown(parser.finish()), "");
}

TEST(ToolCallParser, ACopyGoesOnFromTheSamePlace) {
  ToolCallParser parser(kTools);
  const std::string begin = R"({"name": "get_weather", "arguments": {"city": "O)";
  parser.feed(begin);
  ToolCallParser copy = parser;
  EXPECT_EQ(shown(parser.feed("slo\"}}")), "slo\"}]");
  EXPECT_EQ(shown(copy.feed("ran\"}}")), "ran\"}]");
  copy = parser;
  EXPECT_EQ(shown(copy.feed(";" + kOslo)), "[1" + kOsloSeen);
  EXPECT_EQ(shown(parser.feed(" Done.")), "' Done.");
}

TEST(ToolCallParser, ParametersTakeTheTypeOfTheirSchema) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"days", "3", "3"},
      {"days", " +007 ", "7"},
      {"days", "three", "\"three\""},
      {"days", "3.5", "\"3.5\""},
      {"days", "123456789012345678901234567890", "123456789012345678901234567890"},
      {"days", "null", "\"null\""},
      {"level", "None", "null"},
      {"level", "-4", "-4"},
      {"share", "0.5", "0.5"},
      {"share", "2", "2"},
      {"share", "1e3", "1e3"},
      {"share", ".5", "0.5"},
      {"share", "nan", "\"nan\""},
      {"wet", "True", "true"},
      {"wet", "maybe", "\"maybe\""},
      {"tags", R"(["a", 1])", R"(["a", 1])"},
      {"tags", "['a', None, (1, 2), 'it\\'s \"x\"\\n\\xe9']",
       R"(["a", null, [1, 2], "it's \"x\"\n\u00e9"])"},
      {"tags", "a b", "\"a b\""},
      {"more", "{'a': {'b': True,},}", R"({"a": {"b": true}})"},
      {"more", "{'a'", "\"{'a'\""},
      {"unit", "null", "null"},
      {"unit", "C", "\"C\""},
      {"city", "null", "\"null\""},
      {"unknown", "7", "\"7\""},
      {"city", "", "\"\""},
  };
  for (const auto& [key, text, value] : cases) {
    for (const std::string& body : {"\n" + text + "\n", text}) {
      const ParsedReply reply = parse_tool_calls(
          "<function=get_weather><parameter=" + key + ">" + body + "</parameter></function>",
          kTools);
      ASSERT_EQ(reply.calls.size(), 1u);
      EXPECT_EQ(reply.calls[0].arguments, "{\"" + key + "\": " + value + "}");
    }
  }
}

TEST(ToolCallParser, ASchemaMayReferToOthers) {
  const char* tools = R"([{"name": "f", "parameters": {
    "properties": {"where": {"$ref": "#/$defs/Place"}, "days": {"anyOf": [{"$ref": "#/$defs/N"}]},
                   "round": {"$ref": "#/$defs/Round"}, "lost": {"$ref": "#/$defs/None/more"}},
    "$defs": {"Place": {"type": "object"}, "N": {"type": ["integer", "null"]},
              "Round": {"anyOf": [{"$ref": "#/$defs/Round"}]}}}}])";
  const ParsedReply reply = parse_tool_calls(
      "<function=f><parameter=where>\n{\"city\": \"Oslo\"}\n</parameter><parameter=days>\n3\n"
      "</parameter><parameter=round>1</parameter><parameter=lost>2</parameter></function>",
      tools);
  ASSERT_EQ(reply.calls.size(), 1u);
  EXPECT_EQ(reply.calls[0].arguments,
            R"({"where": {"city": "Oslo"}, "days": 3, "round": "1", "lost": "2"})");
}

TEST(ToolCallParser, AFunctionThatWasCutShortIsNotComplete) {
  const std::string cut = kFunction.substr(0, kFunction.find("</function>"));
  EXPECT_EQ(of({cut}), "[0" + kFunctionSeen);  // the model ended it so
  EXPECT_EQ(of({cut}, true), R"([0get_weather {"city": "San\nFrancisco", "days": 3!])");
  EXPECT_EQ(of({"<function=get_time>"}), "[0get_time {}]");
  EXPECT_EQ(of({"<function=get_time>"}, true), "'<function=get_time>");
  EXPECT_EQ(of({kFunction.substr(0, kFunction.find("cisco"))}, true),
            R"([0get_weather {"city": "San\nFran!])");
  for (const std::string& whole : {kFunction, "<tool_call>\n" + kFunction}) {
    EXPECT_EQ(of({whole}, true), "[0" + kFunctionSeen);
  }
}

TEST(ToolCallParser, IdsAreUnique) {
  const ParsedReply reply =
      parse_tool_calls("[" + call("get_time") + "," + call("get_time") + "]", kTools);
  std::set<std::string> ids;
  for (const ToolCall& each : reply.calls) ids.insert(each.id);
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(ids.begin()->size(), 29u);
  EXPECT_TRUE(ids.begin()->starts_with("call_"));
  EXPECT_EQ(reply.calls[0], reply.calls[1]);
}

TEST(ToolCallParser, WhatIsNoToolIsSaid) {
  const auto says = [](const char* tools) {
    try {
      ToolCallParser parser(tools);
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(says("[]"), "");
  EXPECT_TRUE(says("[").starts_with("tools: got no JSON; expected"));
  EXPECT_TRUE(says("{}").starts_with("tools: got a object; expected")) << says("{}");
  EXPECT_TRUE(says("[1]").starts_with("tools[0]: got a number; expected"));
  EXPECT_TRUE(says(R"([{"name": "f"}, {"parameters": {}}])").starts_with("tools[1] has no name"));
}

}  // namespace
}  // namespace dendrite::test
