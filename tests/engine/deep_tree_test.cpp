// Trees a hundred levels deep and eight branches wide at each: every branch is what its tokens say,
// and all of it comes free.
#include <gtest/gtest.h>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::Random;
using test::Tokens;

constexpr int kDepth = 100;
constexpr int kWidth = 8;

class DeepTree : public ::testing::TestWithParam<int> {
 protected:
  EngineOptions options() const {
    EngineOptions options;
    options.page_tokens = GetParam();
    options.kv_tokens = std::int64_t{1000} * GetParam();
    options.prefix_index = false;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(PageTokens, DeepTree, ::testing::Values(8, 16, 32));

TEST_P(DeepTree, AHundredDeepAndEightWide) {
  const Engine e = load("tinyllama", options());
  Session session(e, {.seed = 5});
  const Tokens prompt = Random(1).tokens(21, 256);
  std::vector<Branch> levels[kDepth];
  Branch root = session.prefill(std::span(prompt));
  Branch* parent = &root;
  for (int depth = 0; depth < kDepth; ++depth) {
    levels[depth] = parent->fork(kWidth);
    for (const Generation& out :
         session.decode(levels[depth], {.max_tokens = 1, .temperature = 1.0, .ignore_eos = true})) {
      ASSERT_EQ(out.ids.size(), 1u);
    }
    parent = &levels[depth][static_cast<std::size_t>(depth % kWidth)];
  }
  ASSERT_EQ(session.stats().branches_live, 1 + kDepth * kWidth);
  std::vector<Branch> all;
  for (std::vector<Branch>& level : levels) {
    for (Branch& branch : level) all.push_back(std::move(branch));
  }
  EXPECT_TRUE(test::tree_is_sound(e, {std::span(&root, 1), std::span(all)}));
  EXPECT_EQ(all.back().length(), 21 + kDepth);

  // More than half of what a branch reads is shared, and the whole takes less than a fifth.
  const BranchStats leaf = all.back().stats();
  EXPECT_GT(leaf.shared_pages * 2, leaf.pages);
  const EngineStats stats = e.stats();
  EXPECT_GT(stats.naive_bytes, 5 * stats.unique_bytes);

  const Engine fresh = load("tinyllama", options());
  for (const int i : {0, 7, 37 * kWidth + 2, 63 * kWidth + 7, 99 * kWidth, 99 * kWidth + 7}) {
    Branch& branch = all[static_cast<std::size_t>(i)];
    EXPECT_TRUE(test::same_bits(test::bits_of(branch), test::replay(fresh, branch.tokens())))
        << "branch " << i;
  }

  // The deepest one alone, then nothing.
  Branch deepest = std::move(all.back());
  root.prune();
  all.clear();
  EXPECT_TRUE(test::tree_is_sound(e, {std::span(&deepest, 1)}));
  EXPECT_EQ(deepest.stats().own_pages, deepest.stats().pages);
  EXPECT_TRUE(test::same_bits(test::bits_of(deepest), test::replay(fresh, deepest.tokens())));
  deepest.prune();
  test::expect_all_pages_free(e);
}

}  // namespace
}  // namespace dendrite
