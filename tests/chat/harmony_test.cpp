// Answers in Harmony as they come: thoughts, content and calls, however they are cut.
#include "dendrite/harmony.h"

#include "chat/chat_texts.h"
#include "dendrite/error.h"

namespace dendrite::test {
namespace {

const std::string kThink = "<|channel|>analysis<|message|>";
const std::string kFinal = "<|channel|>final<|message|>";
const std::string kNext = "<|end|><|start|>assistant";

std::string calls(const std::string& to, const std::string& arguments) {
  return "<|channel|>commentary to=" + to + " <|constrain|>json<|message|>" + arguments;
}

std::string read(const std::vector<std::string>& pieces, bool cut_short = false) {
  static const HarmonyParser kParser(kTools);
  return parsed(kParser, pieces, cut_short);
}

TEST(HarmonyParser, EachMessageGoesWhereItsChannelSays) {
  const std::string weather = calls("functions.get_weather", R"({"city": "Rome"})");
  const std::string call = R"([0get_weather {"city": "Rome"}])";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {kThink + "Rain?" + kNext + kFinal + "No.<|return|>", "~Rain?'No."},
      {kThink + "Rain?" + kNext + weather + "<|call|>", "~Rain?" + call},
      {kFinal + " a\n", "' a\n"},
      {weather, call},
      {"<|channel|>analysis to=functions.get_weather code<|message|>{\"city\": \"Rome\"}<|call|>",
       call},
      {" to=functions.get_weather<|channel|>commentary json<|message|>\n{\"city\": \"Rome\"}\n",
       call},
      {" to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Rome\"}", call},
      {"<|channel|>commentary to=get_weather<|message|>{\"city\": \"Rome\"}<|end|>", call},
      {kThink + "a" + kNext + kThink + "b" + kNext + kFinal + "c", "~a\n\nb'c"},
      {"<|channel|>commentary<|message|>I look." + kNext + kThink + "b" + kNext + weather,
       "'I look.~b" + call},
      {"<|channel|>commentary<|message|>I look." + kNext + kFinal + "It rains.",
       "'I look.\n\nIt rains."},
      {weather + "<|call|><|start|>assistant" + calls("functions.get_time", "{}") + "<|call|>",
       call + "[1get_time {}]"},
      {calls("functions.get_time", "") + "<|call|>", "[0get_time {}]"},
      {calls("functions.get_time", "{}") + " \n<|call|>", "[0get_time {}]"},
      // What is no tool, or no object.
      {calls("functions.get_times", "{}") + "<|call|>", "'{}"},
      {"<|channel|>analysis to=python code<|message|>1 + 1<|call|>", "~1 + 1"},
      {calls("functions.get_time", " now") + "<|call|>", "' now"},
      {calls("functions.get_time", R"({"a": x})") + "<|call|>", R"([0get_time {"a": !]'x})"},
      {calls("functions.get_time", R"({"a")") + "<|call|>", R"([0get_time {"a"!])"},
      {calls("functions.get_time", "{} so") + "<|call|>", "[0get_time {}]'so"},
      {calls("functions.get_time", "{\"a\": \"\n\"}"), R"([0get_time {"a": "\n"}])"},
      // What is not as it should be.
      {"Hello", "'Hello"},
      {"assistant", "'assistant"},
      {" tomorrow", "' tomorrow"},
      {"<|message|>Hello<|end|>!", "'Hello\n\n!"},
      {kThink + "Rain?" + kFinal + "No.", "~Rain?'No."},
      {kThink + "a<|start|>assistant" + kFinal + "b", "~a'b"},
      {"<|channel|>odd<|message|>a <|endless|> b", "'a <|endless|> b"},
      {kThink + "a<|end", "~a<|end"},
      {"<|start|>assistant<|channel|>", ""}};
  for (const auto& [text, wanted] : cases) {
    EXPECT_EQ(read({text}), wanted) << text;
    expect_same_for_all_cuttings(text, [](const auto& pieces) { return read(pieces); });
    expect_same_for_all_cuttings(text, [](const auto& pieces) { return read(pieces, true); });
  }
}

TEST(HarmonyParser, ACallThatIsCutKeepsItsArguments) {
  EXPECT_EQ(read({calls("functions.get_weather", R"({"city": "Ro)")}, true),
            R"([0get_weather {"city": "Ro!])");
  EXPECT_EQ(read({calls("functions.get_weather", "{}")}, true), "[0get_weather {}]");
  EXPECT_EQ(read({calls("functions.get_time", "")}, true), "");
  EXPECT_EQ(read({calls("functions.get_time", "")}), "[0get_time {}]");
}

TEST(HarmonyParser, RandomTextsAreTheSameForAnyCutting) {
  const std::vector<std::string> parts = {"<|start|>",   "<|channel|>",
                                          "<|message|>", "<|constrain|>",
                                          "<|end|>",     "<|call|>",
                                          "<|return|>",  "assistant",
                                          "analysis",    "commentary",
                                          "final",       " to=functions.",
                                          "get_time",    "get_weather",
                                          "{",           "}",
                                          R"("a": 1)",   " ",
                                          "\n",          "<|",
                                          "json",        "é"};
  std::mt19937 draw(11);
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (std::size_t n = draw() % 16; n > 0; --n) text += parts[draw() % parts.size()];
    SCOPED_TRACE(text);
    expect_same_for_all_cuttings(text, [](const auto& pieces) { return read(pieces); });
  }
}

TEST(HarmonyParser, MarksThatAreTokensAreNoneWhereTheyAreText) {
  const HarmonyTokens tokens = {1, 2, 3, 4, 5, 6, 7};
  HarmonyParser parser(kTools, tokens);
  EXPECT_TRUE(parser.is_mark(7) && !parser.is_mark(8));
  std::vector<ReplyEvent> events;
  const auto feed = [&](Token token, std::string_view text) {
    for (ReplyEvent& each : parser.feed(token, text)) events.push_back(std::move(each));
  };
  feed(2, "");
  feed(9, "analysis");
  feed(4, "<|message|>");  // not left out of the text
  feed(9, "The mark <|end|>");
  feed(5, "é");  // what was said before it
  feed(1, "");
  feed(9, "assistant");
  feed(2, "");
  feed(9, "final");
  feed(4, "");
  feed(9, "Yes");
  feed(7, "");
  EXPECT_EQ(shown(events), "~The mark <|end|>é'Yes");
}

TEST(HarmonyParser, ItGoesOnFromThePromptAndItsCopyFromThere) {
  const auto behind = [&](const std::string& prompt, const std::string& text) {
    return parsed(HarmonyParser(kTools, {}, prompt), {text}, false);
  };
  EXPECT_EQ(behind("no mark", kFinal + "a"), "'a");
  EXPECT_EQ(behind("<|start|>user<|message|>x<|end|><|start|>assistant\n", "a"), "'a");
  EXPECT_EQ(behind("<|start|>assistant" + kThink, "a" + kNext + kFinal + "b"), "~a'b");
  EXPECT_EQ(behind("<|start|>assistant" + calls("functions.get_time", ""), "{}"), "[0get_time {}]");

  HarmonyParser parser(kTools);
  EXPECT_EQ(shown(parser.feed(kThink + "a")), "~a");
  HarmonyParser copy = parser;
  EXPECT_EQ(shown(copy.feed("b" + kNext + kThink + "c")), "~b\n\nc");
  EXPECT_EQ(shown(parser.feed(kNext + kFinal + "d")), "'d");
  copy = parser;
  EXPECT_EQ(shown(copy.feed("e")), "'e");
}

TEST(HarmonyParser, AnAnswerCanBeBegun) {
  HarmonyParser parser(kTools);
  EXPECT_EQ(parser.begin("It is"), kFinal + "It is");
  EXPECT_EQ(shown(parser.feed(" late.")), "' late.");
  parser = HarmonyParser(kTools);
  parser.begin("");
  EXPECT_EQ(shown(parser.feed(" to=Rome")), "' to=Rome");
  HarmonyParser inside(kTools, {}, "<|start|>assistant" + kFinal);
  EXPECT_EQ(inside.begin("It is"), "It is");
  EXPECT_THROW(HarmonyParser("{}"), Error);
}

}  // namespace
}  // namespace dendrite::test
