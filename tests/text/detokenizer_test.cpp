#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "golden.h"
#include "text/utf8.h"

namespace dendrite {
namespace {

using test::Json;
using Ids = std::vector<std::int32_t>;

/// All text that was given out before finish(), and after.
std::pair<std::string, std::string> stream(const Detokenizer& detokenizer, const Ids& ids) {
  DetokState state;
  std::string text;
  for (const std::int32_t id : ids) {
    text += detokenizer.push(state, id);
    EXPECT_TRUE(is_utf8(text));
  }
  return {text, text + detokenizer.finish(state)};
}

class DetokenizerOf : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder_ = test::text_data() / "tokenizers" / GetParam();
  Tokenizer tokenizer_ = Tokenizer::open(folder_);
};

TEST_P(DetokenizerOf, StreamsWhatTransformersDecodes) {
  const Detokenizer without(tokenizer_), with(tokenizer_, /*skip_special=*/false);
  const Json golden = test::read_json(folder_ / "golden.json");
  for (const Json& entry : golden["decode"]) {
    const auto ids = entry["ids"].get<Ids>();
    EXPECT_EQ(stream(without, ids).second, entry["no_special"].get<std::string>()) << entry["ids"];
    EXPECT_EQ(stream(with, ids).second, entry["text"].get<std::string>()) << entry["ids"];
  }
}

TEST_P(DetokenizerOf, EqualsDecodeForAnyIds) {
  const Detokenizer detokenizer(tokenizer_);
  std::mt19937 random(17);
  // Up to 3 beyond the vocabulary; half of the lists from a small set, so that patterns repeat.
  std::uniform_int_distribution<std::int32_t> any(0, tokenizer_.vocab_size() + 2);
  for (int round = 0; round < 3000; ++round) {
    Ids set(1 + random() % 6), ids(1 + random() % 24);
    for (std::int32_t& id : set) id = any(random);
    for (std::int32_t& id : ids) id = round % 2 == 0 ? any(random) : set[random() % set.size()];
    const auto [streamed, all] = stream(detokenizer, ids);
    const std::string expected = tokenizer_.decode(ids, /*skip_special=*/true);
    ASSERT_EQ(all, expected) << testing::PrintToString(ids);
    if (!detokenizer.incremental_ok()) continue;
    // Nothing is held back after a token that ends a character and is no byte token.
    ASSERT_LE(expected.size() - streamed.size(), 3 * ids.size());
  }
}

DetokState after(const Detokenizer& detokenizer, const Ids& ids, std::size_t* reads = nullptr) {
  return detokenizer.after(ids.size(), [&](std::size_t begin, std::span<std::int32_t> out) {
    ASSERT_LE(begin + out.size(), ids.size());
    std::copy_n(ids.begin() + static_cast<std::ptrdiff_t>(begin), out.size(), out.begin());
    if (reads != nullptr) *reads += out.size();
  });
}

TEST_P(DetokenizerOf, ReadsFewIdsOfALongTextToFindItsState) {
  const Detokenizer detokenizer(tokenizer_);
  Ids ids;
  for (int i = 0; i < 1000; ++i) {
    for (const std::int32_t id : tokenizer_.encode("The tree 你好", false)) ids.push_back(id);
  }
  std::size_t reads = 0;
  after(detokenizer, ids, &reads);
  if (detokenizer.incremental_ok()) {
    EXPECT_LE(reads, 100u);
  }
}

TEST_P(DetokenizerOf, FindsTheStateAfterAnyIds) {
  std::mt19937 random(23);
  std::uniform_int_distribution<std::int32_t> any(0, tokenizer_.vocab_size() + 2);
  for (const bool skip_special : {true, false}) {
    const Detokenizer detokenizer(tokenizer_, skip_special);
    for (int round = 0; round < 2000; ++round) {
      // Few different ids, so that runs of bytes, of spaces and of special tokens come about.
      Ids set(1 + random() % 6), ids(random() % 40);
      for (std::int32_t& id : set) id = random() % 2 == 0 ? any(random) : any(random) % 300;
      for (std::int32_t& id : ids) id = round % 4 == 0 ? any(random) : set[random() % set.size()];
      DetokState pushed;
      for (const std::int32_t id : ids) detokenizer.push(pushed, id);
      const DetokState found = after(detokenizer, ids);
      ASSERT_EQ(found.held, pushed.held) << testing::PrintToString(ids);
      ASSERT_EQ(found.cut, pushed.cut) << testing::PrintToString(ids);
      ASSERT_EQ(found.at_start, pushed.at_start) << testing::PrintToString(ids);
    }
  }
}

TEST_P(DetokenizerOf, AnyStateForks) {
  const Detokenizer detokenizer(tokenizer_);
  const Ids ids = tokenizer_.encode(" é🌳<0xF0>  the 你好 👩‍👧 tree", true);
  const Ids other = tokenizer_.encode("好 x", false);
  DetokState state;
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    text += detokenizer.push(state, ids[i]);
    DetokState fork = state;
    std::string forked = text;
    Ids path(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    for (const std::int32_t id : other) {
      forked += detokenizer.push(fork, id);
      path.push_back(id);
    }
    forked += detokenizer.finish(fork);
    EXPECT_EQ(forked, tokenizer_.decode(path, true));
  }
  EXPECT_EQ(text + detokenizer.finish(state), tokenizer_.decode(ids, true));
}

INSTANTIATE_TEST_SUITE_P(Families, DetokenizerOf, testing::ValuesIn(test::folders("tokenizers")),
                         [](const auto& info) { return info.param; });

TEST(Detokenizer, FollowsTheDecodersOfLanguageModels) {
  for (const std::string& family : test::folders("tokenizers")) {
    const Detokenizer detokenizer(Tokenizer::open(test::text_data() / "tokenizers" / family));
    EXPECT_EQ(detokenizer.incremental_ok(), family != "wordpiece") << family;
  }
}

TEST(Detokenizer, DoesNotStreamWhatIsCleanedUpAtTheEnd) {
  const test::TempDir dir("clean_up");
  std::filesystem::copy(test::text_data() / "tokenizers/bare/tokenizer.json", dir.path());
  EXPECT_TRUE(Detokenizer(Tokenizer::open(dir.path())).incremental_ok());
  dir.write("tokenizer_config.json", R"({"clean_up_tokenization_spaces": true})");
  EXPECT_FALSE(Detokenizer(Tokenizer::open(dir.path())).incremental_ok());
}

TEST(Detokenizer, GivesACharacterWithItsLastByte) {
  const Tokenizer tokenizer = Tokenizer::open(test::text_data() / "tokenizers/gpt2");
  const Detokenizer detokenizer(tokenizer);
  const auto id = [&](const char* token) { return tokenizer.token_to_id(token).value(); };
  DetokState state;  // U+1F9D0 is F0 9F A7 90, in GPT-2's alphabet:
  EXPECT_EQ(detokenizer.push(state, id("ð")), "");
  EXPECT_EQ(detokenizer.push(state, id("Ł")), "");
  EXPECT_EQ(detokenizer.push(state, id("§")), "");
  EXPECT_EQ(detokenizer.push(state, id("Ĳ")), "\xF0\x9F\xA7\x90");
  EXPECT_EQ(detokenizer.push(state, id("ð")), "");
  EXPECT_EQ(detokenizer.push(state, id("A")),
            "\xEF\xBF\xBD"
            "A");
  EXPECT_EQ(detokenizer.push(state, id("ð")), "");
  EXPECT_EQ(detokenizer.finish(state), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.push(state, id("A")), "A");
}

TEST(Detokenizer, HoldsARunOfByteTokensUntilItEnds) {
  const Tokenizer tokenizer = Tokenizer::open(test::text_data() / "tokenizers/llama2");
  const Detokenizer detokenizer(tokenizer);
  const auto id = [&](const char* token) { return tokenizer.token_to_id(token).value(); };
  DetokState state;
  EXPECT_EQ(detokenizer.push(state, id("<0x41>")), "");
  EXPECT_EQ(detokenizer.push(state, id("e")), "Ae");
  EXPECT_EQ(detokenizer.push(state, id("<0x41>")), "");
  EXPECT_EQ(detokenizer.push(state, id("<0xFF>")), "");
  EXPECT_EQ(detokenizer.finish(state), "\xEF\xBF\xBD\xEF\xBF\xBD");  // one bad byte spoils the run
}

TEST(Detokenizer, CutsTheLeadingSpaceOfEachText) {
  const Tokenizer tokenizer = Tokenizer::open(test::text_data() / "tokenizers/llama2");
  const Detokenizer detokenizer(tokenizer);
  const Ids ids = tokenizer.encode("a", false);
  DetokState state;
  for (int text = 0; text < 2; ++text) {
    std::string out;
    for (const std::int32_t id : ids) out += detokenizer.push(state, id);
    EXPECT_EQ(out + detokenizer.finish(state), "a");
  }
}

TEST(Utf8, ReplacesMaximalParts) {
  const auto lossy = [](std::string bytes) { return take_utf8(bytes, true); };
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(lossy("a\x80z"), "a" + bad + "z");
  EXPECT_EQ(lossy("\xe2\x82"), bad);
  EXPECT_EQ(lossy("\xe2\x82\xe2\x82\xac"), bad + "\xe2\x82\xac");
  EXPECT_EQ(lossy("\xc0\xaf"), bad + bad);
  EXPECT_EQ(lossy("\xed\xa0\x80"), bad + bad + bad);
  EXPECT_EQ(lossy("\xf4\x90\x80\x80"), bad + bad + bad + bad);
  EXPECT_EQ(lossy("\xf4\x8f\xbf\xbf"), "\xf4\x8f\xbf\xbf");
  std::string open = "x\xf0\x9f\x8c";
  EXPECT_EQ(take_utf8(open, false), "x");
  EXPECT_EQ(open, "\xf0\x9f\x8c");
}

}  // namespace
}  // namespace dendrite
