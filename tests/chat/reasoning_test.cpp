// Thoughts apart from what is said, however the text is cut.
#include "dendrite/reasoning.h"

#include "chat/chat_texts.h"

namespace dendrite::test {
namespace {

const ReasoningTags kThink = {"<think>", "</think>"};

std::string shown(const ReasoningSplit& split) {
  return split.reasoning + "|" + split.content;
}

std::string of(const std::vector<std::string>& pieces, bool inside) {
  ReasoningSplitter splitter(kThink, inside);
  ReasoningSplit all;
  const auto add = [&](const ReasoningSplit& split) {
    all.reasoning += split.reasoning;
    all.content += split.content;
  };
  for (const std::string& piece : pieces) add(splitter.feed(piece));
  add(splitter.finish());
  return shown(all);
}

TEST(ReasoningSplitter, ThoughtsAreApartForAnyCutting) {
  struct Case {
    const char* text;
    bool inside;
    const char* seen;
  };
  for (const Case& each : std::initializer_list<Case>{
           {"<think>\nhm\n</think>\n\nyes\n", false, "hm|yes\n"},
           {"<think>\nhm\n</think>\n\nyes", true, "hm|yes"},  // said once more
           {"hm\n</think>\n\nyes", true, "hm|yes"},
           {"</think> yes", true, "|yes"},
           {"<think>\n\n</think>\n\nyes", false, "|yes"},
           {"<think>\nhm, so\n", false, "hm, so|"},  // cut short
           {"hm, so", true, "hm, so|"},
           {"hm, </thi", true, "hm, </thi|"},
           {"<thi", true, "<thi|"},
           {"yes </think> no", false, "|yes </think> no"},
           {" yes", false, "| yes"},
           {" <think", false, "| <think"},
           {"", true, "|"},
           {"a <think> b</think>c</think> <think>d", true, "a <think> b|c</think> <think>d"},
           {"<<</think>>", true, "<<|>"},
       }) {
    EXPECT_EQ(of({each.text}, each.inside), each.seen);
    expect_same_for_all_cuttings(each.text,
                                 [&](const auto& pieces) { return of(pieces, each.inside); });
  }
}

TEST(ReasoningSplitter, ThoughtsStream) {
  ReasoningSplitter splitter(kThink);
  EXPECT_EQ(shown(splitter.feed(" <think>\nhm ")), "hm|");
  ReasoningSplitter copy = splitter;  // as a branch forks
  EXPECT_EQ(shown(splitter.feed("so <")), " so|");
  EXPECT_EQ(shown(splitter.feed("/think>\n")), "|");
  EXPECT_EQ(shown(splitter.feed("\nyes <")), "|yes <");
  EXPECT_EQ(shown(copy.feed("no</think>no")), " no|no");
}

TEST(ReasoningSplitter, TagsMayBeSpecialTokens) {
  for (const bool inside : {false, true}) {
    ReasoningSplitter splitter({"[THINK]", "[/THINK]", 256, 257}, inside);
    EXPECT_EQ(shown(splitter.feed(256, "")), "|");
    EXPECT_EQ(shown(splitter.feed(7, "ab")), "ab|");
    EXPECT_EQ(shown(splitter.feed(257, "c")), "c|");
    EXPECT_EQ(shown(splitter.feed(8, "de")), "|de");
    EXPECT_EQ(shown(splitter.feed(257, "")), "|");  // said later, they mean nothing
  }
  ReasoningSplitter splitter({"[THINK]", "[/THINK]", 256, 257});
  EXPECT_EQ(shown(splitter.feed(256, "[THINK]")),
            "|");  // and where they are text, they are it once
  EXPECT_EQ(shown(splitter.feed(257, "[/THINK]a")), "|a");
}

}  // namespace
}  // namespace dendrite::test
