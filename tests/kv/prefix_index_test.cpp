#include "kv/prefix_index.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kv/tree_harness.h"

namespace dendrite {
namespace {

using testing::TreeHarness;
using Tokens = std::vector<Token>;

class PrefixIndexTest : public ::testing::Test {
 protected:
  /// What an engine does with a prompt: take what is known, compute the rest, remember it.
  Tip& prefill(const Tokens& tokens, Salt salt = 0) {
    std::optional<Tip> known = index.longest_match(tokens, salt);
    reused = known ? h.tree.length(*known) : 0;
    Tip& tip = h.keep(known ? std::move(*known) : h.tree.root(salt));
    h.tree.append(tip, std::span(tokens).subspan(static_cast<std::size_t>(reused)));
    EXPECT_TRUE(h.step({&tip}));
    index.insert(tokens, tip);
    return tip;
  }

  std::int64_t match(const Tokens& tokens, Salt salt = 0) {
    std::optional<Tip> tip = index.longest_match(tokens, salt);
    if (!tip) return 0;
    const std::int64_t length = h.tree.length(*tip);
    EXPECT_EQ(h.tree.tokens(*tip), Tokens(tokens.begin(), tokens.begin() + length));
    EXPECT_EQ(h.tree.computed(*tip), length);
    EXPECT_EQ(h.tree.salt(*tip), salt);
    EXPECT_TRUE(h.bytes_are_right(*tip));
    h.tree.drop(*tip);
    return length;
  }

  void check() {
    index.check_invariants();
    std::vector<const Tip*> live = h.live_tips();
    index.collect_tips(live);
    h.tree.check_invariants(live);
    ASSERT_TRUE(h.all_bytes_are_right());
  }

  static Tokens range(Token first, std::int64_t count) {
    Tokens tokens(static_cast<std::size_t>(count));
    std::iota(tokens.begin(), tokens.end(), first);
    return tokens;
  }
  static Tokens join(Tokens a, const Tokens& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  TreeHarness h{512};
  PrefixIndex index{h.tree};
  std::int64_t reused = 0;
};

TEST_F(PrefixIndexTest, FindsNothingInAnEmptyIndex) {
  EXPECT_FALSE(index.longest_match(range(0, 10)).has_value());
  EXPECT_FALSE(index.longest_match({}).has_value());
  EXPECT_FALSE(index.evict_one());
}

TEST_F(PrefixIndexTest, TheSamePromptTwiceFindsItsPagesAndItsLogits) {
  const Tokens prompt = range(0, 40);
  Tip& first = prefill(prompt);
  EXPECT_EQ(reused, 0);
  h.tree.segment(first)->logits = std::make_shared<const LogitsRow>();
  const std::int64_t used = h.tree.stats().used_pages;
  Tip& second = prefill(prompt);
  EXPECT_EQ(reused, 40);
  EXPECT_EQ(h.tree.stats().used_pages, used);
  EXPECT_NE(h.tree.segment(second)->logits, nullptr);
  EXPECT_EQ(index.size(), 1);
  check();
}

TEST_F(PrefixIndexTest, APromptKnownWithoutLogitsTakesThoseOfALaterInsert) {
  const Tokens prompt = range(0, 40);
  h.drop(prefill(prompt));
  Tip& again = h.root();  // the same tokens, computed on their own
  h.tree.append(again, prompt);
  ASSERT_TRUE(h.step({&again}));
  const auto row = std::make_shared<const LogitsRow>();
  h.tree.segment(again)->logits = row;
  index.insert(prompt, again);
  EXPECT_EQ(index.size(), 1);
  h.drop(again);
  EXPECT_EQ(h.tree.stats().used_pages, 3);
  std::optional<Tip> known = index.longest_match(prompt);
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(h.tree.segment(*known)->logits, row);
  h.tree.drop(*known);
}

TEST_F(PrefixIndexTest, MatchesTheLongestPrefixAtEveryLength) {
  const Tokens common = range(0, 20);
  const Tokens a = join(common, range(100, 30));
  const Tokens b = join(common, range(200, 17));
  prefill(a);
  EXPECT_EQ(reused, 0);
  prefill(b);
  EXPECT_EQ(reused, 20);
  check();
  for (const Tokens& prompt : {a, b}) {
    for (std::int64_t length = 0; length <= std::ssize(prompt); ++length) {
      const Tokens prefix(prompt.begin(), prompt.begin() + length);
      EXPECT_EQ(match(prefix), length);
      EXPECT_EQ(match(join(prefix, {9999})), length);
    }
  }
  EXPECT_EQ(match({1}), 0);
  check();
}

TEST_F(PrefixIndexTest, TextsOfOneSaltFindEachOtherAndNoOthers) {
  const Tokens prompt = range(0, 40);
  const std::vector<Salt> salts = {0, 1, 2, Salt{1} << 63};
  std::vector<Tip*> tips;
  for (const Salt salt : salts) {
    EXPECT_EQ(match(prompt, salt), 0);
    Tip& tip = prefill(prompt, salt);
    EXPECT_EQ(reused, 0);
    tips.push_back(&tip);
    h.tree.append(tip, range(500, 9));  // held by a branch, remembered by nobody
    ASSERT_TRUE(h.step({&tip}));
    EXPECT_EQ(match(join(prompt, range(500, 12)), salt), 49);
    EXPECT_EQ(match(join(range(0, 23), {9999}), salt), 23);  // cuts a segment
    Tip& past = h.keep(h.tree.at(tip, 0));
    h.tree.append(past, prompt);
    EXPECT_EQ(h.tree.held_elsewhere(*h.tree.segment(past), 0, 40), 40);
    h.drop(past);
    check();
  }
  EXPECT_EQ(index.size(), 4);
  EXPECT_EQ(match(prompt, 3), 0);
  for (std::size_t i = 0; i < 3; ++i) h.drop(*tips[i]);
  EXPECT_TRUE(index.evict_one());
  EXPECT_EQ(match(prompt, 0), 0);
  check();
  EXPECT_EQ(match(prompt, 1), 40);
  index.clear();
  check();
  EXPECT_EQ(match(prompt, 1), 0);
  EXPECT_EQ(match(prompt, salts.back()), 40);
}

TEST_F(PrefixIndexTest, APrefixAndAnExtensionOfARememberedPromptAreRemembered) {
  prefill(range(0, 30));
  prefill(range(0, 12));  // a prefix
  EXPECT_EQ(reused, 12);
  EXPECT_EQ(index.size(), 2);
  check();
  prefill(range(0, 50));  // an extension
  EXPECT_EQ(reused, 30);
  EXPECT_EQ(index.size(), 3);
  EXPECT_EQ(index.stats().tokens, 50);  // each token is stored once
  check();
  EXPECT_EQ(match(range(0, 60)), 50);
  EXPECT_EQ(match(range(0, 12)), 12);
}

TEST_F(PrefixIndexTest, EntriesOfOnePrefixShareItsPages) {
  const Tokens common = range(0, 64);
  for (Token i = 0; i < 10; ++i) h.drop(prefill(join(common, range(1000 * (i + 1), 16))));
  EXPECT_EQ(h.tree.stats().used_pages, 4 + 10);
  check();
}

TEST_F(PrefixIndexTest, ALaterBranchMayNotDisturbWhatIsRemembered) {
  Tip& branch = prefill(range(0, 20));
  h.extend(branch, 30);  // the branch goes on; it shares its tip page with the index
  EXPECT_EQ(match(range(0, 20)), 20);
  EXPECT_EQ(h.tree.stats().copies_on_write, 1);
  check();
  h.drop(branch);
  EXPECT_EQ(match(range(0, 20)), 20);
  EXPECT_EQ(h.tree.stats().used_pages, 2);
  check();
}

TEST_F(PrefixIndexTest, InsertOfALongerBranchRemembersTheGivenTokensOnly) {
  const Tokens tokens = range(0, 50);
  Tip& tip = h.root();
  h.tree.append(tip, tokens);
  ASSERT_TRUE(h.step({&tip}));
  index.insert(std::span(tokens).first(20), tip);
  check();
  EXPECT_EQ(match(tokens), 50);  // while the branch lives
  h.drop(tip);
  EXPECT_EQ(match(tokens), 20);
  EXPECT_EQ(h.tree.stats().used_pages, 2);
}

TEST_F(PrefixIndexTest, FindsWhatALiveBranchHasComputedAndNothingPending) {
  const Tokens prompt = range(0, 20);
  Tip& branch = prefill(prompt);
  h.tree.append(branch, range(100, 20));
  const Tokens all = join(prompt, range(100, 20));
  EXPECT_EQ(match(all), 20);
  ASSERT_TRUE(h.step({&branch}, 7));
  EXPECT_EQ(match(all), 27);
  ASSERT_TRUE(h.step({&branch}));
  EXPECT_EQ(match(all), 40);
  EXPECT_EQ(match(join(all, range(500, 5))), 40);
  EXPECT_EQ(match(join(Tokens(all.begin(), all.begin() + 33), range(500, 5))), 33);
  h.tree.segment(branch)->logits = std::make_shared<const LogitsRow>();
  std::optional<Tip> tip = index.longest_match(all);
  ASSERT_TRUE(tip.has_value());
  EXPECT_NE(h.tree.segment(*tip)->logits, nullptr);
  h.tree.drop(*tip);
  check();
}

TEST_F(PrefixIndexTest, EvictsTheLeastRecentlyUsedFirstAndGivesItsPagesBack) {
  const Tokens a = range(0, 32);
  const Tokens b = range(100, 32);
  const Tokens c = range(200, 32);
  for (const Tokens& prompt : {a, b, c}) h.drop(prefill(prompt));
  EXPECT_EQ(match(a), 32);  // b is the oldest now
  EXPECT_EQ(h.tree.stats().used_pages, 6);
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(h.tree.stats().used_pages, 4);
  EXPECT_EQ(match(b), 0);
  EXPECT_EQ(match(c), 32);
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(match(a), 0);
  EXPECT_EQ(match(c), 32);
  ASSERT_TRUE(index.evict_one());
  EXPECT_FALSE(index.evict_one());
  EXPECT_EQ(index.size(), 0);
  EXPECT_EQ(h.tree.stats().used_pages, 0);
  check();
}

TEST_F(PrefixIndexTest, EvictsLeavesBeforeTheirPrefixes) {
  const Tokens common = range(0, 20);
  h.drop(prefill(common));
  h.drop(prefill(join(common, range(100, 20))));
  h.drop(prefill(join(common, range(200, 20))));
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(match(join(common, range(100, 20))), 20);
  check();
  ASSERT_TRUE(index.evict_one());
  check();
  EXPECT_EQ(match(common), 20);
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(h.tree.stats().used_pages, 0);
}

TEST_F(PrefixIndexTest, TwoPromptsThatPartLeaveOneEdgeWhenOneGoes) {
  const Tokens common = range(0, 20);
  h.drop(prefill(join(common, range(100, 20))));
  h.drop(prefill(join(common, range(200, 20))));
  EXPECT_EQ(index.stats().nodes, 3);
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(index.stats().nodes, 1);
  EXPECT_EQ(index.size(), 1);
  check();
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(h.tree.stats().used_pages, 0);
}

TEST_F(PrefixIndexTest, DoesNotForgetWhatWouldGiveNoPageBack) {
  Tip& held = prefill(range(0, 32));
  h.drop(prefill(range(100, 32)));
  EXPECT_EQ(match(range(100, 32)), 32);  // the held one is older
  ASSERT_TRUE(index.evict_one());
  EXPECT_EQ(match(range(0, 32)), 32);
  EXPECT_FALSE(index.evict_one());
  h.drop(held);
  EXPECT_TRUE(index.evict_one());
}

TEST_F(PrefixIndexTest, CountsLookUpsAndHits) {
  h.drop(prefill(range(0, 32)));
  match(join(range(0, 10), {77}));
  match(range(500, 5));
  EXPECT_EQ(index.stats().lookups, 3);
  EXPECT_EQ(index.stats().hits, 1);
  EXPECT_EQ(index.stats().hit_tokens, 10);
  EXPECT_EQ(index.stats().looked_up_tokens, 32 + 11 + 5);
}

TEST_F(PrefixIndexTest, AgreesWithANaiveListOverRandomPromptsAndEvictions) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int turn = 0; turn < 600; ++turn) {
    Tokens tokens(static_cast<std::size_t>(1 + below(24)));
    for (Token& token : tokens) token = below(2);
    if (below(5) == 0) {
      index.evict_one();
    } else {
      // The longest match is the longest common prefix with any path that the index holds.
      std::vector<const Tip*> held;
      index.collect_tips(held);
      std::int64_t expected = 0;
      for (const Tip* tip : held) {
        const Tokens other = h.tree.tokens(*tip);
        const auto common =
            std::mismatch(tokens.begin(), tokens.end(), other.begin(), other.end()).first;
        expected = std::max<std::int64_t>(expected, common - tokens.begin());
      }
      Tip& tip = prefill(tokens);
      ASSERT_EQ(reused, expected);
      ASSERT_EQ(match(tokens), std::ssize(tokens));
      if (below(3) != 0) h.drop(tip);
      if (h.tips.size() > 10) h.drop(*h.tips.front());
    }
    ASSERT_NO_FATAL_FAILURE(check());
  }
  EXPECT_GT(index.stats().evictions, 50);
  h.drop_all();
  index.clear();
  EXPECT_EQ(h.tree.stats().used_pages, 0);
  EXPECT_EQ(h.tree.stats().segments, 0);
}

}  // namespace
}  // namespace dendrite
