// Any order of operations: every branch keeps its tokens and its bytes, and nothing leaks.
#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kv/tree_harness.h"

namespace dendrite {
namespace {

using testing::TreeHarness;

/// Branches as plain vectors of tokens, beside the tree.
class RandomTree {
 public:
  RandomTree(std::uint32_t seed, std::int64_t pages, std::int64_t page_tokens,
             TreeHarness::Mode mode = TreeHarness::Mode::kPlain)
      : random_(seed), h_(pages, page_tokens, mode) {
    add_root();
  }

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      operate();
      ASSERT_TRUE(h_.invariants_hold()) << "after operation " << i;
      if (i % 8 == 0) {
        ASSERT_NO_FATAL_FAILURE(check_branches()) << "after operation " << i;
      }
      if (::testing::Test::HasFailure()) FAIL() << "operation " << i;
    }
    check_branches();
    h_.drop_all();
    EXPECT_EQ(h_.tree.stats().used_pages, 0);
    EXPECT_EQ(h_.tree.stats().segments, 0);
    EXPECT_TRUE(h_.invariants_hold());
    EXPECT_GT(steps_, operations / 20);  // it did not only fail to find pages
  }

  KvTreeStats stats() const { return h_.tree.stats(); }
  int evictions() const { return evictions_; }

 private:
  struct Branch {
    Tip* tip;
    std::vector<Token> tokens;
  };

  std::int64_t below(std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random_);
  }
  Branch& any() { return branches_[static_cast<std::size_t>(below(std::ssize(branches_)))]; }
  void add(Tip& tip, std::vector<Token> tokens) { branches_.push_back({&tip, std::move(tokens)}); }

  void add_root() { add(h_.keep(h_.tree.root(static_cast<Salt>(below(2)))), {}); }

  void operate() {
    switch (below(14)) {
      case 0:
      case 1:
        return fork();
      case 2:
        return rewind();
      case 3:
        return drop();
      case 4:
      case 5:
      case 6:
        return append(any());
      case 7:
        return fail_a_step();
      case 8:
        return evict();
      case 9:
        if (branches_.size() < 12) add_root();
        return;
      default:
        return step();
    }
  }

  void fork() {
    const Branch& parent = any();
    std::vector<Token> tokens = parent.tokens;
    add(h_.fork(*parent.tip), std::move(tokens));
  }
  void rewind() {
    const Branch& from = any();
    const std::int64_t length = below(std::ssize(from.tokens) + 1);
    std::vector<Token> tokens(from.tokens.begin(), from.tokens.begin() + length);
    add(h_.at(*from.tip, length), std::move(tokens));
  }
  void drop() {
    const std::int64_t i = below(std::ssize(branches_));
    if (std::ssize(branches_) > 12 || below(2) == 0) {
      drop(i);
    }
    if (branches_.empty()) add_root();
  }
  void drop(std::int64_t i) {
    Tip& tip = *branches_[static_cast<std::size_t>(i)].tip;
    const std::int64_t own = h_.tree.own_pages(tip);
    const std::int32_t free_before = h_.tree.pool().free_pages();
    h_.drop(tip);
    branches_.erase(branches_.begin() + i);
    EXPECT_EQ(h_.tree.pool().free_pages() - free_before, own);
  }
  void append(Branch& branch) {
    const std::int64_t count = below(4) == 0 ? 1 + below(40) : 1 + below(3);
    std::vector<Token> tokens;
    for (std::int64_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<Token>(below(4)));  // few ids: equal tokens are no excuse
    }
    h_.tree.append(*branch.tip, tokens);
    branch.tokens.insert(branch.tokens.end(), tokens.begin(), tokens.end());
  }
  std::vector<Tip*> some() {
    std::vector<Tip*> tips;
    for (const Branch& branch : branches_) {
      if (below(2) == 0) tips.push_back(branch.tip);
    }
    std::shuffle(tips.begin(), tips.end(), random_);
    return tips;
  }
  void step() {
    const std::vector<Tip*> tips = some();
    const std::int64_t rows = below(3) == 0 ? 1 + below(20) : TreeHarness::kNoLimit;
    if (!h_.step(tips, rows, [&] { meanwhile(tips); })) {
      for (Tip* tip : tips) h_.tree.unreserve(*tip);
      drop();
    }
    ++steps_;
  }
  /// What other threads may do to the tree while the model runs.
  void meanwhile(const std::vector<Tip*>& planned) {
    while (below(2) == 0) {
      switch (below(4)) {
        case 0:
          fork();
          break;
        case 1:
          rewind();
          break;
        case 2: {
          const std::int64_t i = below(std::ssize(branches_));
          Tip* tip = branches_[static_cast<std::size_t>(i)].tip;
          if (std::find(planned.begin(), planned.end(), tip) != planned.end()) break;
          drop(i);
          if (branches_.empty()) add_root();
          break;
        }
        default: {
          Branch& to = any();
          if (std::find(planned.begin(), planned.end(), to.tip) == planned.end()) append(to);
        }
      }
    }
  }
  /// Pages are reserved, and then nothing runs.
  void fail_a_step() {
    const std::vector<Tip*> tips = some();
    std::vector<Tip*> reserved;
    for (Tip* tip : tips) {
      if (h_.tree.reserve(*tip)) reserved.push_back(tip);
    }
    if (below(2) == 0) return;
    for (Tip* tip : reserved) h_.tree.unreserve(*tip);
  }

  /// K and V of some branches go, as far as others do not need them.
  void evict() {
    std::vector<Tip*> tips = some();  // the others hold on to theirs without having been asked
    const std::int64_t kept = below(std::ssize(tips) + 1);
    const std::int64_t wanted = h_.tree.pool().free_pages() + 1 + below(20);
    std::vector<std::int64_t> computed;
    std::vector<std::uint64_t> claims;
    h_.tree.begin_eviction();
    for (Tip* tip : tips) {
      computed.push_back(h_.tree.computed(*tip));
      claims.push_back(h_.tree.claim(*tip));
    }
    for (std::int64_t i = std::ssize(tips) - 1; i >= kept; --i) {
      const auto at = static_cast<std::size_t>(i);
      if (h_.tree.evict(*tips[at], claims[at], wanted)) {
        ++evictions_;
        EXPECT_LT(h_.tree.computed(*tips[at]), computed[at]);
      }
    }
    for (std::int64_t i = 0; i < kept; ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(h_.tree.computed(*tips[at]), computed[at]);
    }
  }

  void check_branches() {
    std::set<PageId> held;
    for (const Branch& branch : branches_) {
      for (const Segment* s = h_.tree.segment(*branch.tip); s != nullptr; s = s->parent) {
        for (std::int64_t i = 0; i < s->page_count; ++i) held.insert(s->page(i));
      }
    }
    const std::vector<const Tip*> live = h_.live_tips();
    ASSERT_EQ(h_.tree.usage(live).unique_pages, std::ssize(held));
    ASSERT_EQ(h_.tree.stats().used_pages, std::ssize(held));
    for (const Branch& branch : branches_) {
      ASSERT_EQ(h_.tree.tokens(*branch.tip), branch.tokens);
      ASSERT_TRUE(h_.bytes_are_right(*branch.tip));
      ASSERT_NO_FATAL_FAILURE(check_held(branch));
    }
  }

  /// The longest prefix of these tokens of which some branch of this salt holds K and V, by looking
  /// at all.
  std::int64_t longest_held(const std::vector<Token>& tokens, Salt salt) {
    std::int64_t longest = 0;
    for (const Branch& other : branches_) {
      if (h_.tree.salt(*other.tip) != salt) continue;
      const std::int64_t common =
          std::mismatch(tokens.begin(), tokens.end(), other.tokens.begin(), other.tokens.end())
              .first -
          tokens.begin();
      longest = std::max(longest, std::min(common, h_.tree.computed(*other.tip)));
    }
    return longest;
  }

  void check_held(const Branch& branch) {
    const Salt salt = h_.tree.salt(*branch.tip);
    const std::int64_t held = longest_held(branch.tokens, salt);
    std::vector<Segment*> missing;
    h_.tree.missing_chain(*branch.tip, missing);
    for (const Segment* s : missing) {
      ASSERT_EQ(h_.tree.held_elsewhere(*s, s->computed, s->end()),
                std::clamp<std::int64_t>(held - s->computed, 0, s->end() - s->computed));
    }
    std::vector<Token> tokens = branch.tokens;
    if (below(2) == 0) tokens.push_back(static_cast<Token>(below(4)));
    if (!tokens.empty() && below(2) == 0) {
      tokens[static_cast<std::size_t>(below(std::ssize(tokens)))] = static_cast<Token>(below(4));
    }
    const KvTree::Place place = h_.tree.find_held(tokens, salt);
    ASSERT_EQ(place.length, longest_held(tokens, salt));
    if (place.length == 0) return;
    ASSERT_LT(place.segment->begin, place.length);
    Tip& tip = h_.keep(h_.tree.at(place));
    tokens.resize(static_cast<std::size_t>(place.length));
    ASSERT_EQ(h_.tree.tokens(tip), tokens);
    ASSERT_TRUE(h_.bytes_are_right(tip));
    h_.drop(tip);
  }

  std::mt19937 random_;
  TreeHarness h_;
  std::vector<Branch> branches_;
  int steps_ = 0;
  int evictions_ = 0;
};

class KvTreeRandom : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(PageTokens, KvTreeRandom, ::testing::Values(8, 16, 32));

TEST_P(KvTreeRandom, BranchesKeepTheirTokensAndBytesAndNothingLeaks) {
  KvTreeStats total;
  for (std::uint32_t seed = 0; seed < testing::scaled(24); ++seed) {
    RandomTree tree(seed, 400, GetParam());
    ASSERT_NO_FATAL_FAILURE(tree.run(250)) << "seed " << seed;
    total.copies_on_write += tree.stats().copies_on_write;
    total.splits += tree.stats().splits;
    total.absorbed += tree.stats().absorbed;
    total.evicted_segments += tree.evictions();
  }
  EXPECT_GT(total.copies_on_write, 0);  // the paths that matter were taken
  EXPECT_GT(total.splits, 0);
  EXPECT_GT(total.absorbed, 0);
  EXPECT_GT(total.evicted_segments, 0);
}

TEST_P(KvTreeRandom, AlsoWhenThePoolIsNearlyAlwaysFull) {
  for (std::uint32_t seed = 1000; seed < 1000 + testing::scaled(20); ++seed) {
    RandomTree tree(seed, 24, GetParam());
    ASSERT_NO_FATAL_FAILURE(tree.run(250)) << "seed " << seed;
  }
}

TEST_P(KvTreeRandom, InDebugModeAThousandOperationsBreakNoCanary) {
  for (const std::int64_t pages : {24, 400}) {
    RandomTree tree(7, pages, GetParam(), TreeHarness::Mode::kDebug);
    ASSERT_NO_FATAL_FAILURE(tree.run(1000));
  }
}

}  // namespace
}  // namespace dendrite
