// Drafts of a model that says what is likely for each place by itself.
#include "draft/block_drafter.h"

#include <gtest/gtest.h>

#include <cmath>

namespace dendrite {
namespace {

using Places = std::vector<std::vector<TokenLogprob>>;

TokenLogprob likely(Token token, double p) {
  return {token, static_cast<float>(std::log(p))};
}

Places two_each(double first, double second, std::size_t count) {
  Places places(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto base = static_cast<Token>(10 * i);
    places[i] = {likely(base, first), likely(base + 1, second)};
  }
  return places;
}

TEST(BlockDrafterTest, MakesATreeOfWhatIsLikely) {
  const BlockDrafter drafter;
  const Places places = two_each(0.6, 0.35, 3);
  const Draft draft = drafter.propose(places, {.nodes = 8, .depth = 3, .least = 0.15});
  ASSERT_GE(draft.nodes.size(), 4U);
  EXPECT_EQ(draft.nodes[0].token, 0);
  EXPECT_EQ(draft.level, 3U);
  // What comes beside a token has the same tokens after it.
  std::vector<Token> roots;
  for (const DraftNode& node : draft.nodes) {
    if (node.parent < 0) roots.push_back(node.token);
    EXPECT_EQ(node.token / 10, node.depth - 1);
  }
  EXPECT_EQ(roots, (std::vector<Token>{0, 1}));
}

TEST(BlockDrafterTest, OneTokenAPlaceIsAChain) {
  const BlockDrafter drafter;
  Places places = two_each(0.9, 0.05, 5);
  for (auto& place : places) place.resize(1);
  const Draft draft = drafter.propose(places, {.nodes = 16, .depth = 16, .least = 0});
  ASSERT_EQ(draft.nodes.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(draft.nodes[i].parent, static_cast<std::int32_t>(i) - 1);
  }
}

TEST(BlockDrafterTest, TheChainComesFirstIfItIsToldTo) {
  const BlockDrafter drafter;
  const Places places = two_each(0.5, 0.45, 6);
  DraftLimits limits{.nodes = 8, .depth = 6, .least = 0};
  const auto deepest = [&] {
    std::int32_t deepest = 0;
    const Draft draft = drafter.propose(places, limits);
    EXPECT_EQ(draft.nodes.size(), 8U);
    for (const DraftNode& node : draft.nodes) deepest = std::max(deepest, node.depth);
    return deepest;
  };
  EXPECT_LT(deepest(), 6);
  limits.chain_first = true;
  EXPECT_EQ(deepest(), 6);
  limits.nodes = 3;  // as far as it goes
  const Draft draft = drafter.propose(places, limits);
  ASSERT_EQ(draft.nodes.size(), 3U);
  EXPECT_EQ(draft.nodes[2].depth, 3);
}

TEST(BlockDrafterTest, LearnsThatTheLikeliestStayRightAndStrayTextsDoNot) {
  BlockDrafter drafter;
  const Places places = two_each(0.6, 0.35, 3);
  const DraftLimits all{.nodes = 14, .depth = 3, .least = 0};
  for (int i = 0; i < 200; ++i) {
    const Draft draft = drafter.propose(places, all);
    // The second token of the first place comes, and nothing that was drafted after it.
    std::int32_t beside = -1;
    for (std::size_t n = 0; n < draft.nodes.size(); ++n) {
      if (draft.nodes[n].token == 1) beside = static_cast<std::int32_t>(n);
    }
    ASSERT_GE(beside, 0);
    drafter.learn(draft, -1, beside);
    drafter.learn(draft, beside, -1);
  }
  const Draft draft = drafter.propose(places, {.nodes = 14, .depth = 3, .least = 0.2});
  ASSERT_FALSE(draft.nodes.empty());
  EXPECT_EQ(draft.nodes[0].token, 1);  // likelier than what the model thinks is
  for (const DraftNode& node : draft.nodes) EXPECT_EQ(node.depth, 1);
}

}  // namespace
}  // namespace dendrite
