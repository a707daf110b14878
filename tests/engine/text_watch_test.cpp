#include "engine/calls/text_watch.h"

#include <gtest/gtest.h>

#include <random>

namespace dendrite {
namespace {

TEST(TextWatch, FindsAStopStringAcrossPieces) {
  const std::vector<std::string> stops{"END"};
  TextWatch watch(&stops);
  EXPECT_FALSE(watch.add("one E"));
  EXPECT_EQ(watch.take_visible(false), "one ");
  EXPECT_FALSE(watch.add("N"));
  EXPECT_EQ(watch.take_visible(false), "");
  EXPECT_TRUE(watch.add("D two"));
  EXPECT_EQ(watch.take_visible(true), "");
  EXPECT_EQ(watch.text(), "one ");
}

TEST(TextWatch, GivesHeldTextOutOnceItCanBeNoStop) {
  const std::vector<std::string> stops{"aab"};
  TextWatch watch(&stops);
  EXPECT_FALSE(watch.add("aa"));
  EXPECT_EQ(watch.take_visible(false), "");
  EXPECT_FALSE(watch.add("a"));  // "aaa": the first can be no beginning any more
  EXPECT_EQ(watch.take_visible(false), "a");
  EXPECT_FALSE(watch.add("c"));
  EXPECT_EQ(watch.take_visible(false), "aac");
  EXPECT_FALSE(watch.add("a"));
  EXPECT_EQ(watch.take_visible(true), "a");
  EXPECT_EQ(watch.text(), "aaaca");
}

TEST(TextWatch, TakesTheEarliestOfSeveral) {
  const std::vector<std::string> stops{"cd", "bcd", "x"};
  TextWatch watch(&stops);
  EXPECT_EQ(watch.stop(), "");
  EXPECT_TRUE(watch.add("abcdx"));
  EXPECT_EQ(watch.text(), "a");
  EXPECT_EQ(watch.stop(), "bcd");
}

TEST(TextWatch, NamesTheShortestThatBeginsThere) {
  const std::vector<std::string> stops{"bcd", "bc", "bcde"};
  TextWatch watch(&stops);
  EXPECT_TRUE(watch.add("abcde"));
  EXPECT_EQ(watch.text(), "a");
  EXPECT_EQ(watch.stop(), "bc");
}

TEST(TextWatch, WithoutStopsHoldsNothingBack) {
  const std::vector<std::string> none;
  TextWatch watch(&none);
  EXPECT_FALSE(watch.add("abc"));
  EXPECT_EQ(watch.take_visible(false), "abc");
  EXPECT_EQ(watch.take_visible(true), "");
}

TEST(TextWatch, AgreesWithAPlainSearchOnRandomText) {
  std::mt19937 random(1);
  const auto word = [&](std::size_t least, std::size_t most) {
    std::string text;
    for (std::size_t n = least + random() % (most - least + 1); n > 0; --n)
      text += "ab"[random() % 2];
    return text;
  };
  int found = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (std::size_t n = 1 + random() % 3; n > 0; --n) stops.push_back(word(1, 6));
    TextWatch watch(&stops);
    std::string all, shown;
    for (int piece = 0; piece < 12; ++piece) {
      all += word(0, 3);
      std::string added = all.substr(watch.text().size());
      // Earliest beginning of any stop string that is complete by now.
      std::size_t cut = std::string::npos;
      for (const std::string& stop : stops) cut = std::min(cut, all.find(stop));
      ASSERT_EQ(watch.add(added), cut != std::string::npos) << all;
      if (cut != std::string::npos) {
        ++found;
        shown += watch.take_visible(true);
        ASSERT_EQ(shown, all.substr(0, cut));
        std::string first;
        for (const std::string& stop : stops) {
          if (all.find(stop) == cut && (first.empty() || stop.size() < first.size())) first = stop;
        }
        ASSERT_EQ(watch.stop(), first);
        break;
      }
      shown += watch.take_visible(false);
      // Shown text is never taken back, and nothing is held that can be no beginning of a stop
      // string.
      std::size_t held = 0;
      for (const std::string& stop : stops) {
        for (std::size_t n = 1; n < stop.size(); ++n) {
          if (all.ends_with(stop.substr(0, n))) held = std::max(held, n);
        }
      }
      ASSERT_EQ(shown, all.substr(0, all.size() - held));
    }
  }
  EXPECT_GT(found, 1000);
}

}  // namespace
}  // namespace dendrite
