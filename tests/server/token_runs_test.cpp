// What two token sequences have in common.
#include <gtest/gtest.h>

#include <random>

#include "server/token_runs.h"

namespace dendrite::server {
namespace {

std::vector<Token> random_tokens(std::mt19937& draw, std::int64_t count, Token vocab = 1000) {
  std::vector<Token> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<Token>(draw() % static_cast<unsigned>(vocab)));
  }
  return tokens;
}

void append(std::vector<Token>& to, const std::vector<Token>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

std::vector<TokenRun> runs_of(const std::vector<Token>& from, const std::vector<Token>& to,
                              std::int64_t shortest = 128) {
  return common_runs(from, TokenPlaces(from), to, TokenPlaces(to), common_prefix(from, to),
                     shortest);
}

TEST(TokenRuns, WhatStandsBehindAChangeIsFoundToTheToken) {
  std::mt19937 draw(1);
  const std::vector<Token> before = random_tokens(draw, 300);
  const std::vector<Token> kept = random_tokens(draw, 700);
  std::vector<Token> from = before;
  append(from, {1001, 1002, 1003});
  append(from, kept);
  append(from, random_tokens(draw, 40));
  std::vector<Token> to = before;
  append(to, {2001, 2002, 2003, 2004, 2005});
  append(to, kept);
  append(to, {3001});
  EXPECT_EQ(common_prefix(from, to), 300);
  EXPECT_EQ(runs_of(from, to), (std::vector<TokenRun>{{303, 305, 700}}));
}

TEST(TokenRuns, SeveralChangesAndPartsInAnotherOrder) {
  std::mt19937 draw(2);
  const std::vector<Token> a = random_tokens(draw, 400);
  const std::vector<Token> b = random_tokens(draw, 500);
  const std::vector<Token> c = random_tokens(draw, 600);
  std::vector<Token> from;
  for (const auto* part : {&a, &b, &c}) append(from, *part);
  std::vector<Token> to = {5000};
  for (const auto* part : {&c, &a}) {
    append(to, *part);
    to.push_back(6000);
  }
  EXPECT_EQ(runs_of(from, to), (std::vector<TokenRun>{{900, 1, 600}, {0, 602, 400}}));
}

TEST(TokenRuns, ShortOnesAreNone) {
  std::mt19937 draw(3);
  const std::vector<Token> kept = random_tokens(draw, 199);
  std::vector<Token> from = {1};
  append(from, kept);
  std::vector<Token> to = {2};
  append(to, kept);
  EXPECT_TRUE(runs_of(from, to, 200).empty());
  EXPECT_EQ(runs_of(from, to, 199).size(), 1U);
  EXPECT_TRUE(runs_of({}, to).empty());
  EXPECT_TRUE(runs_of(from, {}).empty());
}

/// Edits at random places, and texts that repeat themselves: what is found is the same, does not
/// overlap, and is most of it.
TEST(TokenRuns, AnyEditsOfAnyText) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 draw(seed);
    const Token vocab = seed % 3 == 0 ? 2 : seed % 3 == 1 ? 60 : 100'000;
    std::vector<Token> from = random_tokens(draw, 3000, vocab);
    if (seed % 5 == 0) append(from, std::vector<Token>(from.begin(), from.begin() + 1500));
    std::vector<Token> to = from;
    const int edits = static_cast<int>(draw() % 4);
    for (int i = 0; i < edits; ++i) {
      const auto at = static_cast<std::ptrdiff_t>(draw() % (to.size() - 100));
      to.erase(to.begin() + at, to.begin() + at + static_cast<std::ptrdiff_t>(draw() % 80));
      const std::vector<Token> more = random_tokens(draw, static_cast<std::int64_t>(draw() % 80));
      to.insert(to.begin() + at, more.begin(), more.end());
    }
    const std::int64_t prefix = common_prefix(from, to);
    std::int64_t done = prefix;
    std::int64_t found = prefix;
    for (const TokenRun& run : runs_of(from, to)) {
      ASSERT_GE(run.to, done);
      ASSERT_GE(run.from, prefix);
      ASSERT_GE(run.count, 128);
      done = run.to + run.count;
      ASSERT_LE(done, std::ssize(to));
      ASSERT_LE(run.from + run.count, std::ssize(from));
      ASSERT_TRUE(std::equal(to.begin() + run.to, to.begin() + done, from.begin() + run.from));
      found += run.count;
    }
    EXPECT_GT(found, std::ssize(to) - (edits + 1) * 300) << seed;
  }
}

/// Where all windows are alike no more of them are looked at.
TEST(TokenRuns, OneTokenAHundredThousandTimes) {
  std::size_t found = 0;
  for (Token token = 0; token < 40; ++token) {  // (of one in 16 the windows count)
    std::vector<Token> from(100'000, token);
    std::vector<Token> to = from;
    from[10] = 50;
    to[10] = 51;
    found += runs_of(from, to) == std::vector<TokenRun>{{11, 11, 99'989}} ? 1 : 0;
    for (std::size_t i = 0; i < from.size(); i += 100) from[i] = static_cast<Token>(1000 + i);
    for (std::size_t i = 0; i < to.size(); i += 90) to[i] = static_cast<Token>(1001 + i);
    EXPECT_TRUE(runs_of(from, to).empty());
  }
  EXPECT_GT(found, 0U);
  EXPECT_LT(found, 10U);
}

TEST(TokenRuns, WhatIsCommonIsCountedAtAnyPlace) {
  std::mt19937 draw(4);
  const std::vector<Token> a = random_tokens(draw, 20'000);
  std::vector<Token> b = random_tokens(draw, 777);
  append(b, std::vector<Token>(a.begin() + 5000, a.end()));
  const std::int64_t common = TokenPlaces(a).common(TokenPlaces(b));
  EXPECT_GT(common, 10'000);
  EXPECT_LT(common, 20'000);
  EXPECT_EQ(TokenPlaces(random_tokens(draw, 5000)).common(TokenPlaces(a)), 0);
}

}  // namespace
}  // namespace dendrite::server
