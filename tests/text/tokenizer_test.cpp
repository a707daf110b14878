#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <random>
#include <thread>

#include "dendrite/error.h"
#include "golden.h"
#include "text/utf8.h"

namespace dendrite {
namespace {

using test::Json;
using test::TempDir;
using Ids = std::vector<std::int32_t>;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class TokenizerGolden : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder_ = test::text_data() / "tokenizers" / GetParam();
  Json golden_ = test::read_json(folder_ / "golden.json");
  Tokenizer tokenizer_ = Tokenizer::open(folder_);
};

TEST_P(TokenizerGolden, EncodesAsTransformers) {
  const Json texts = test::read_json(test::text_data() / "texts.json");
  const Json& entries = golden_["encode"];
  ASSERT_GE(entries.size(), 100u);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const auto ids = entries[i]["ids"].get<Ids>();
    const auto bare = entries[i]["bare"].get<std::array<std::ptrdiff_t, 2>>();
    EXPECT_EQ(tokenizer_.encode(text, true), ids) << texts[i];
    EXPECT_EQ(tokenizer_.encode(text, false), Ids(ids.begin() + bare[0], ids.begin() + bare[1]))
        << texts[i];
  }
}

TEST_P(TokenizerGolden, DecodesAsTransformers) {
  const Json texts = test::read_json(test::text_data() / "texts.json");
  const Json& encoded = golden_["encode"];
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    const Json& text = encoded[i]["text"].is_null() ? texts[i] : encoded[i]["text"];
    EXPECT_EQ(tokenizer_.decode(encoded[i]["ids"].get<Ids>(), false), text.get<std::string>())
        << encoded[i]["ids"];
  }
  for (const Json& entry : golden_["decode"]) {
    const auto ids = entry["ids"].get<Ids>();
    EXPECT_EQ(tokenizer_.decode(ids, false), entry["text"].get<std::string>()) << entry["ids"];
    EXPECT_EQ(tokenizer_.decode(ids, true), entry["no_special"].get<std::string>()) << entry["ids"];
  }
}

TEST_P(TokenizerGolden, EncodesATextAsWhatFollowsAnother) {
  std::size_t compared = 0;
  for (const Json& json : test::read_json(test::text_data() / "texts.json")) {
    const auto text = json.get<std::string>();
    for (std::size_t border = 0; border < text.size(); border += 1 + border / 4) {
      if ((static_cast<unsigned char>(text[border]) & 0xc0) == 0x80) continue;  // in a character
      const Ids front = tokenizer_.encode(text.substr(0, border), false);
      const Ids whole = tokenizer_.encode(text, false);
      const std::string told = tokenizer_.decode(front, false);
      if (border > 0 && (told.empty() || told.back() != text[border - 1])) continue;
      if (!std::equal(front.begin(), front.end(), whole.begin(),
                      whole.begin() + std::min(std::ssize(front), std::ssize(whole)))) {
        continue;  // tokens merge over the border
      }
      EXPECT_EQ(tokenizer_.encode_after(front, text.substr(border)),
                Ids(whole.begin() + std::ssize(front), whole.end()))
          << text.substr(0, border) << "|" << text.substr(border);
      ++compared;
    }
  }
  EXPECT_GT(compared, 200u);
  EXPECT_TRUE(tokenizer_.encode_after({}, "").empty());
}

std::string bytes_of(const Tokenizer& tokenizer, const Ids& ids) {
  std::string bytes;
  for (const std::int32_t id : ids) bytes += tokenizer.bytes_of(id);
  return bytes;
}

/// Of tokenizers that clean spaces up: without them.
std::string as_told(const Tokenizer& tokenizer, std::string text) {
  if (tokenizer.cleans_up_spaces()) std::erase(text, ' ');
  return text;
}

TEST_P(TokenizerGolden, BytesOfTokensInARowAreTheText) {
  const Ids front = tokenizer_.encode("x", false);
  const std::string told = tokenizer_.decode(front, false);
  std::size_t inside = 0;
  for (const Json& json : test::read_json(test::text_data() / "texts.json")) {
    const auto text = json.get<std::string>();
    const Ids ids = tokenizer_.encode(text, true);
    // A beginning is without the space that stands before a word.
    const std::string whole = as_told(tokenizer_, tokenizer_.decode(ids, false));
    const std::string bytes = as_told(tokenizer_, bytes_of(tokenizer_, ids));
    EXPECT_TRUE(bytes == whole || bytes == " " + whole) << json << " gave " << Json(bytes).dump();
    const Ids more = tokenizer_.encode_after(front, text);
    Ids both = front;
    both.insert(both.end(), more.begin(), more.end());
    EXPECT_EQ(as_told(tokenizer_, told + bytes_of(tokenizer_, more)),
              as_told(tokenizer_, tokenizer_.decode(both, false)))
        << json;
    inside += more.size();
  }
  EXPECT_GT(inside, 200u);
}

TEST_P(TokenizerGolden, BytesOfAnyTokensInARowAreTheirText) {
  const Ids front = tokenizer_.encode("x", false);
  std::mt19937 random(31);
  std::uniform_int_distribution<std::int32_t> any(0, tokenizer_.vocab_size() + 2);
  int compared = 0;
  for (int round = 0; round < 3000; ++round) {
    Ids ids(1 + random() % 8);
    for (std::int32_t& id : ids) id = any(random);
    const std::string bytes = bytes_of(tokenizer_, ids);
    if (!is_utf8(bytes)) continue;  // decode() has another text for these
    Ids both = front;
    both.insert(both.end(), ids.begin(), ids.end());
    ASSERT_EQ(as_told(tokenizer_, tokenizer_.decode(front, false) + bytes),
              as_told(tokenizer_, tokenizer_.decode(both, false)))
        << testing::PrintToString(ids);
    ++compared;
  }
  EXPECT_GT(compared, 200);
}

TEST_P(TokenizerGolden, BytesOfTokensAreThoseOfTheirNames) {
  for (const auto& [token, id] : golden_["added"].items()) {
    if (!tokenizer_.is_special(id.get<std::int32_t>())) continue;
    const std::string bytes = tokenizer_.bytes_of(id.get<std::int32_t>());
    EXPECT_TRUE(bytes == token || bytes == " " + token) << token << " gave " << bytes;
  }
  EXPECT_EQ(tokenizer_.bytes_of(-1), "");
  EXPECT_EQ(tokenizer_.bytes_of(tokenizer_.vocab_size()), "");
}

TEST_P(TokenizerGolden, KnowsItsTokens) {
  EXPECT_EQ(tokenizer_.vocab_size(), golden_["vocab_size"].get<std::int32_t>());
  const auto id_or_none = [](const Json& id) {
    return id.is_null() ? std::nullopt : std::optional(id.get<std::int32_t>());
  };
  EXPECT_EQ(tokenizer_.bos_id(), id_or_none(golden_["bos"]));
  EXPECT_EQ(tokenizer_.eos_id(), id_or_none(golden_["eos"]));
  Ids special;
  for (std::int32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
    if (tokenizer_.is_special(id)) special.push_back(id);
  }
  EXPECT_EQ(special, golden_["special"].get<Ids>());
  for (const auto& [token, id] : golden_["added"].items()) {
    EXPECT_EQ(tokenizer_.token_to_id(token), id.get<std::int32_t>());
    EXPECT_EQ(tokenizer_.id_to_token(id.get<std::int32_t>()), token);
  }
  EXPECT_EQ(tokenizer_.token_to_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer_.id_to_token(tokenizer_.vocab_size()), std::nullopt);
  EXPECT_EQ(tokenizer_.id_to_token(-1), std::nullopt);
  EXPECT_FALSE(tokenizer_.is_special(-1));
  EXPECT_FALSE(tokenizer_.is_special(tokenizer_.vocab_size()));
}

INSTANTIATE_TEST_SUITE_P(Families, TokenizerGolden, testing::ValuesIn(test::folders("tokenizers")),
                         [](const auto& info) { return info.param; });

TEST(Tokenizer, GivesThePartsOfACharacterAsTheyAre) {
  for (const char* name : {"llama3", "llama2", "gemma"}) {
    const Tokenizer tokenizer = Tokenizer::open(test::text_data() / "tokenizers" / name);
    const std::string text = "\xf0\x9f\xa6\x91";  // a squid, in no vocabulary
    const Ids ids = tokenizer.encode(text, false);
    ASSERT_GT(ids.size(), 1u) << name;
    EXPECT_TRUE(bytes_of(tokenizer, ids).ends_with(text)) << name;
    EXPECT_FALSE(is_utf8(tokenizer.bytes_of(ids.back()))) << name;
  }
}

TEST(Tokenizer, TakesBytesThatAreNotUtf8AsReplacementCharacters) {
  const Tokenizer tokenizer = Tokenizer::open(test::text_data() / "tokenizers/llama3");
  const std::string replacement = "\xEF\xBF\xBD";
  EXPECT_EQ(tokenizer.encode("a\xff\xfe z", true),
            tokenizer.encode("a" + replacement + replacement + " z", true));
  // One for each maximal part: the first three bytes of a four-byte character are one.
  EXPECT_EQ(tokenizer.encode("\xf0\x9f\x99|\xed\xa0\x80", false),
            tokenizer.encode(replacement + "|" + replacement + replacement + replacement, false));
}

TEST(Tokenizer, SkipsIdsWithoutATokenAndRefusesNegativeOnes) {
  const Tokenizer tokenizer = Tokenizer::open(test::text_data() / "tokenizers/gpt2");
  Ids ids = tokenizer.encode("a tree", false);
  ids.push_back(99999);
  EXPECT_EQ(tokenizer.decode(ids, false), "a tree");
  ids.push_back(-7);
  const std::string error = error_of([&] { (void)tokenizer.decode(ids, false); });
  EXPECT_NE(error.find("-7"), std::string::npos) << error;
}

TEST(Tokenizer, MayBeUsedFromSeveralThreads) {
  const Tokenizer tokenizer = Tokenizer::open(test::text_data() / "tokenizers/qwen2");
  const std::string text = "The tree shares 24 pages. 你好 🌳 ";
  const Ids expected = tokenizer.encode(text, true);
  std::vector<std::thread> threads;
  std::vector<int> mistakes(4);
  for (int& count : mistakes) {
    threads.emplace_back([&] {
      const Tokenizer copy = tokenizer;
      for (int i = 0; i < 200; ++i) {
        count += copy.encode(text, true) != expected || copy.decode(expected, true) != text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(mistakes, std::vector<int>(4));
}

TEST(Tokenizer, NamesTheFileThatIsMissingOrBroken) {
  const TempDir dir("broken_tokenizer");
  EXPECT_FALSE(Tokenizer::try_open(dir.path()).has_value());
  const std::string missing = error_of([&] { Tokenizer::open(dir.path()); });
  EXPECT_NE(missing.find((dir.path() / "tokenizer.json").string() + ": no such file"),
            std::string::npos)
      << missing;
  for (const char* json : {"", "{}", "[1, 2", "{\"model\": {\"type\": \"BPE\"}}", "\xff\xfe"}) {
    dir.write("tokenizer.json", json);
    const std::string error = error_of([&] { Tokenizer::open(dir.path()); });
    EXPECT_NE(error.find("tokenizer.json: "), std::string::npos) << json << ": " << error;
  }
}

TEST(Tokenizer, NamesTheKeyOfASpecialTokenThatTheTemplateLacks) {
  const TempDir dir("missing_special_token");
  std::string json = test::read_json(test::text_data() / "tokenizers/llama2/tokenizer.json").dump();
  const std::string listed = R"("special_tokens":{"<s>")";
  ASSERT_NE(json.find(listed), std::string::npos);
  json.replace(json.find(listed), listed.size(), R"("special_tokens":{"<t>")");
  dir.write("tokenizer.json", json);
  EXPECT_EQ(error_of([&] { Tokenizer::open(dir.path()); }),
            (dir.path() / "tokenizer.json").string() +
                ": key post_processor.single[0]: got the special token \"<s>\", expected one of "
                "special_tokens: <t>");
}

TEST(Tokenizer, NamesTheBrokenKeyOfTheConfig) {
  const TempDir dir("broken_config");
  std::filesystem::copy(test::text_data() / "tokenizers/bare/tokenizer.json", dir.path());
  const std::pair<const char*, const char*> cases[] = {
      {"{\"eos_token\": 3}", "eos_token"},
      {"{\"added_tokens_decoder\": []}", "added_tokens_decoder"},
      {"{\"added_tokens_decoder\": {\"x\": \"<a>\"}}", "\"x\""},
      {"{\"clean_up_tokenization_spaces\": 1}", "clean_up_tokenization_spaces"},
      {"[]", "an empty JSON array"},
      {"{", "not valid JSON"},
  };
  for (const auto& [json, expected] : cases) {
    dir.write("tokenizer_config.json", json);
    const std::string error = error_of([&] { Tokenizer::open(dir.path()); });
    EXPECT_NE(error.find(expected), std::string::npos) << json << ": " << error;
    EXPECT_NE(error.find("tokenizer_config.json"), std::string::npos) << error;
  }
  dir.write("tokenizer_config.json", std::string(100000, '['));  // must not exhaust the stack
  EXPECT_NE(error_of([&] { Tokenizer::open(dir.path()); }).find("deeper"), std::string::npos);
}

TEST(Tokenizer, AddsTheTokensOfOlderFiles) {
  const TempDir dir("legacy_tokens");
  std::filesystem::copy(test::text_data() / "tokenizers/bare/tokenizer.json", dir.path());
  dir.write("special_tokens_map.json",
            R"({"eos_token": {"content": "</s>", "lstrip": false}, "pad_token": "<pad>"})");
  dir.write("added_tokens.json", R"({"<tool>": 7, "<call>": 6, "</s>": 3})");
  const Tokenizer tokenizer = Tokenizer::open(dir.path());
  EXPECT_EQ(tokenizer.eos_id(), 3);
  EXPECT_EQ(tokenizer.encode("tree<call><tool><pad>", false), (Ids{1, 5, 6, 7}));
  EXPECT_FALSE(tokenizer.is_special(5));
  EXPECT_TRUE(tokenizer.is_special(7));

  dir.write("special_tokens_map.json", "{}");  // tokenizer.json knows more of </s> than this file
  EXPECT_TRUE(Tokenizer::open(dir.path()).is_special(3));
}

}  // namespace
}  // namespace dendrite
