// Matchers: masks, forks, rewinds, and what they share.
#include "grammar/matcher.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "grammar/grammar_cache.h"
#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::Random;
using test::Tokens;

/// Of a model in tests/data/models or models/.
class Words {
 public:
  explicit Words(const std::string& name)
      : engine_(test::load(name)), tokenizer_(*core_of(engine_)->tokenizer) {}

  std::shared_ptr<const Grammar> compile(const Constraint& constraint) const {
    return core_of(engine_)->compiled(constraint);
  }
  Tokens encode(std::string_view text) const { return tokenizer_.encode(text, false); }
  std::string decode(const Tokens& tokens) const { return tokenizer_.decode(tokens, false); }
  Token end() const { return engine_.info().eos.front(); }
  std::int64_t vocab() const { return engine_.info().vocab; }

 private:
  Engine engine_;
  Tokenizer tokenizer_;
};

/// After these tokens, from a start of its own: nothing is shared with another.
Matcher replay(const std::shared_ptr<const Grammar>& grammar, const Tokens& tokens) {
  Matcher matcher(std::make_shared<const Grammar>(
      std::shared_ptr<const Vocabulary>(grammar, &grammar->vocabulary()), grammar->constraint(),
      1));
  for (const Token token : tokens) EXPECT_TRUE(matcher.accept(token));
  return matcher;
}

bool same(const MaskRef& a, const MaskRef& b) {
  return std::ranges::equal(a->words(), b->words());
}

Token draw(Random& random, const TokenMask& mask, std::int64_t vocab) {
  std::vector<Token> allowed;
  for (Token token = 0; token < vocab; ++token) {
    if (mask.allows(token)) allowed.push_back(token);
  }
  return allowed[static_cast<std::size_t>(random.below(std::ssize(allowed)))];
}

Constraint weather() {
  return Constraint::json_schema(
      R"({"type":"object","properties":{"city":{"type":"string","maxLength":8},)"
      R"("days":{"type":"integer","minimum":1,"maximum":30},)"
      R"("unit":{"enum":["celsius","fahrenheit"]}},)"
      R"("required":["city","days","unit"],"additionalProperties":false})");
}

class MatcherTest : public ::testing::TestWithParam<const char*> {
 protected:
  Words words_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Tokenizers, MatcherTest,
                         ::testing::Values("dendrite-24", "qwen3", "llama2", "llama3_tied"));

TEST_P(MatcherTest, TakesWhatItsGrammarDescribes) {
  const struct {
    Constraint constraint;
    std::vector<std::string> good;
    std::vector<std::string> bad;
  } kCases[] = {
      {weather(),
       {R"({"city":"Rome","days":7,"unit":"celsius"})"},
       {R"({"city":"Rome","days":31,"unit":"celsius"})", R"({"days":7,"city":"Rome"})", "{}"}},
      {Constraint::json_object(), {"{}", R"({"a":[1,2,{"b":null}]})"}, {"[]", "1", "{a:1}"}},
      {Constraint::regex("[a-c]{2,3}"), {"ab", "cab"}, {"a", "abcd", "ad"}},
      {Constraint::lark("start: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]+/"),
       {"1", "10+2+345"},
       {"+", "1+", "a"}},
      {Constraint::choice({"yes", "yes, sir", "no \"way\"\n"}),
       {"yes", "yes, sir", "no \"way\"\n"},
       {"ye", "yes,", "noo"}},
  };
  for (const auto& [constraint, good, bad] : kCases) {
    const auto grammar = words_.compile(constraint);
    for (const std::string& text : good) {
      Matcher matcher(grammar);
      const Tokens tokens = words_.encode(text);
      EXPECT_EQ(matcher.count_accepted(tokens), tokens.size()) << text;
      for (const Token token : tokens) EXPECT_TRUE(matcher.accept(token));
      EXPECT_TRUE(matcher.is_accepting()) << text;
      EXPECT_EQ(matcher.length(), std::ssize(tokens));
    }
    for (const std::string& text : bad) {
      Matcher matcher(grammar);
      bool whole = true;
      for (const Token token : words_.encode(text)) whole = whole && matcher.accept(token);
      EXPECT_FALSE(whole && matcher.is_accepting()) << text;
    }
  }
}

/// At every state of random texts: a masked token is refused, another one accepted, each asked of a
/// matcher of its own.
TEST_P(MatcherTest, MasksSayWhatIsAccepted) {
  Random random(5);
  for (const Constraint& constraint :
       {weather(), Constraint::regex("(foo|ba[rz]){1,3}!"), Constraint::choice({"one", "other"})}) {
    const auto grammar = words_.compile(constraint);
    Tokens tokens;
    Matcher matcher(grammar);
    for (int step = 0; step < test::scaled(12) && !matcher.is_complete(); ++step) {
      const MaskRef mask = matcher.mask();
      EXPECT_GT(mask->count(), 0);
      const Matcher alone = replay(grammar, tokens);
      for (Token token = 0; token < words_.vocab(); ++token) {
        Matcher asked = alone;
        const bool accepted = asked.accept(token);
        // (Where only one token can follow that spells what must, others could spell it, too.)
        if (mask->count() > 1) {
          EXPECT_EQ(mask->allows(token), accepted) << token;
        } else if (mask->allows(token)) {
          EXPECT_TRUE(accepted) << token;
        }
      }
      const Token next = draw(random, *mask, words_.vocab());
      ASSERT_TRUE(matcher.accept(next));
      tokens.push_back(next);
    }
  }
}

TEST_P(MatcherTest, CopiesGoTheirOwnWays) {
  Random random(11);
  const auto grammar = words_.compile(weather());
  std::vector<std::pair<Matcher, Tokens>> all{{Matcher(grammar), {}}};
  for (int step = 0; step < test::scaled(150); ++step) {
    const auto i = static_cast<std::size_t>(random.below(std::ssize(all)));
    if (random.one_in(4) && all.size() < 12) {
      const auto copy = all[i];
      all.push_back(copy);
      continue;
    }
    auto& [matcher, tokens] = all[i];
    if (random.one_in(6)) {
      tokens.resize(static_cast<std::size_t>(random.in(0, std::ssize(tokens))));
      matcher = matcher.at(std::ssize(tokens));
    }
    const MaskRef mask = matcher.mask();
    EXPECT_TRUE(same(mask, replay(grammar, tokens).mask()));
    if (mask->count() == 0) {
      tokens.clear();
      matcher = matcher.at(0);
      continue;
    }
    const Token next = draw(random, *mask, words_.vocab());
    ASSERT_TRUE(matcher.accept(next));
    tokens.push_back(next);
  }
}

TEST_P(MatcherTest, TheEndIsWhereTheTextIsWhole) {
  Matcher matcher(words_.compile(Constraint::regex("a{1,2}")));
  EXPECT_FALSE(matcher.accept(words_.end()));
  EXPECT_FALSE(matcher.mask()->allows(words_.end()));
  ASSERT_TRUE(matcher.accept(words_.encode("a").front()));
  EXPECT_TRUE(matcher.is_accepting());
  EXPECT_FALSE(matcher.is_complete());
  EXPECT_TRUE(matcher.mask()->allows(words_.end()));
  Matcher ended = matcher;
  ASSERT_TRUE(ended.accept(words_.end()));
  EXPECT_TRUE(ended.is_complete());
  EXPECT_EQ(ended.length(), 2);
  EXPECT_EQ(ended.mask()->count(), 0);
  EXPECT_FALSE(ended.accept(words_.encode("a").front()));
  EXPECT_TRUE(same(ended.at(1).mask(), matcher.mask()));
  ASSERT_TRUE(matcher.accept(words_.encode("a").front()));
  EXPECT_TRUE(matcher.is_complete());
}

TEST(MatcherSharingTest, SiblingsShareOneMask) {
  const Words words("dendrite-24");
  const auto grammar = words.compile(weather());
  Matcher one(grammar);
  Matcher two = one;
  EXPECT_EQ(one.mask(), two.mask());
  const Tokens tokens = words.encode(R"({"city":"Ro)");
  for (const Token token : tokens) {
    ASSERT_TRUE(one.accept(token));
    ASSERT_TRUE(two.accept(token));  // goes where the other went
    EXPECT_EQ(one.mask(), two.mask());
  }
  Matcher three = one.at(one.length() - 1);
  Matcher four = three;
  const Token other = words.encode("x").front();
  ASSERT_TRUE(three.accept(other));  // leaves the track
  ASSERT_TRUE(four.accept(other));   // and this one with it
  EXPECT_EQ(three.mask(), four.mask());
  EXPECT_NE(three.mask(), one.mask());
}

/// Else they would wait for each other.
TEST(MatcherSharingTest, ThoseThatPartAreSpreadOverFamilies) {
  const Words words("dendrite-24");
  const std::shared_ptr<const Grammar> compiled = words.compile(Constraint::regex("[a-z]{20}"));
  const auto grammar = std::make_shared<const Grammar>(
      std::shared_ptr<const Vocabulary>(compiled, &compiled->vocabulary()), compiled->constraint(),
      4);
  const Matcher root(grammar);
  std::vector<Matcher> children(8, root);
  std::map<const void*, int> of_family;
  for (std::size_t i = 0; i < children.size(); ++i) {
    const std::string letter(1, static_cast<char>('a' + i));
    ASSERT_TRUE(children[i].accept(words.encode(letter).front()));
    ++of_family[children[i].family()];
  }
  EXPECT_EQ(of_family.size(), 4u);
  for (const auto& [family, count] : of_family) EXPECT_LE(count, 3);
}

/// A rewind must not leave the mask of the other way. (One forced byte would hide it: the class has
/// two.)
TEST(MatcherRewindTest, AnotherTokenAfterARewindHasTheMaskOfItsOwn) {
  const Words words("dendrite-24");
  const auto grammar =
      words.compile(Constraint::lark("start: \"a\" x \"T\" | \"b\" x \"N\"\nx: /[k\\?]+/"));
  Matcher a(grammar);
  ASSERT_TRUE(a.accept(words.encode("a").front()));
  ASSERT_TRUE(a.accept(words.encode("k").front()));
  a.mask();
  Matcher b = a.at(0);
  ASSERT_TRUE(b.accept(words.encode("b").front()));
  ASSERT_TRUE(b.accept(words.encode("k").front()));
  EXPECT_TRUE(b.mask()->allows(words.encode("N").front()));
  EXPECT_FALSE(b.mask()->allows(words.encode("T").front()));
  EXPECT_TRUE(a.mask()->allows(words.encode("T").front()));
}

TEST(MatcherThreadsTest, ManyGoAtATime) {
  const Words words("dendrite-24");
  const auto grammar = words.compile(weather());
  const Matcher root(grammar);
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(t);
      for (int round = 0; round < test::scaled(5); ++round) {
        Matcher matcher = root;
        Tokens tokens;
        while (!matcher.is_complete() && tokens.size() < 30) {
          tokens.push_back(draw(random, *matcher.mask(), words.vocab()));
          ASSERT_TRUE(matcher.accept(tokens.back()));
        }
        EXPECT_TRUE(same(matcher.mask(), replay(grammar, tokens).mask()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GrammarCacheTest, EqualConstraintsAreOneGrammar) {
  const Words words("dendrite-24");
  EXPECT_EQ(words.compile(Constraint::regex("a+")), words.compile(Constraint::regex("a+")));
  EXPECT_NE(words.compile(Constraint::regex("a+")),
            words.compile(Constraint::lark("start: \"a\"")));
}

TEST(GrammarCacheTest, WhatCannotBeCompiledSaysWhy) {
  const Words words("dendrite-24");
  const auto message = [&](const Constraint& constraint) -> std::string {
    try {
      words.compile(constraint);
    } catch (const ConstraintError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message(Constraint::json_schema("{")).find("json_schema"), std::string::npos);
  EXPECT_NE(message(Constraint::json_schema(R"({"not":{}})")), "");
  EXPECT_NE(message(Constraint::json_schema("false")), "");
  EXPECT_NE(message(Constraint::regex("(")).find("regex"), std::string::npos);
  EXPECT_NE(message(Constraint::lark("start: unknown")), "");
  EXPECT_NE(message(Constraint::choice({})), "");
  EXPECT_NE(message(Constraint::choice({""})), "");
}

}  // namespace
}  // namespace dendrite
