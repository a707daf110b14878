// Trees of drafts: the best there is under a lattice's chances.
#include "draft/lattice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <set>

namespace dendrite {
namespace {

/// Chances by depth alone, as a block drafter gives them; or by whole path.
class RandomLattice final : public Lattice {
 public:
  RandomLattice(std::uint32_t seed, int tokens, int depth, bool by_path)
      : random_(seed), tokens_(tokens), depth_(depth), by_path_(by_path) {
    depths_.push_back(0);
  }

  std::span<const DraftChild> children(std::int32_t key) override {
    const int depth = depths_[static_cast<std::size_t>(key)];
    std::vector<DraftChild>& out = known_[by_path_ ? key : depth];
    if (depth == depth_) return {};
    if (out.empty()) {
      std::vector<double> weights;
      // (Few values, so that there are ties.)
      for (int i = 0; i < tokens_; ++i) weights.push_back(1 + static_cast<double>(random_() % 5));
      double sum = 0.5;  // something else may come
      for (const double weight : weights) sum += weight;
      for (int i = 0; i < tokens_; ++i) {
        out.push_back({i, static_cast<float>(std::log(weights[static_cast<std::size_t>(i)] / sum)),
                       static_cast<std::int32_t>(depths_.size())});
        depths_.push_back(depth + 1);
      }
      std::ranges::stable_sort(out, std::greater{}, &DraftChild::logw);
    }
    return out;
  }

 private:
  std::mt19937 random_;
  const int tokens_;
  const int depth_;
  const bool by_path_;
  std::vector<int> depths_;  // by key
  std::map<std::int32_t, std::vector<DraftChild>> known_;
};

double expected_tokens(const std::vector<DraftNode>& nodes) {
  double sum = 0;
  for (const DraftNode& node : nodes) sum += std::exp(node.score);
  return sum;
}

/// The most that a subtree of `nodes` nodes below `key` can hold, for each number of nodes.
std::vector<double> best_by_size(Lattice& lattice, std::int32_t key, double chance,
                                 std::size_t most) {
  std::vector<double> best(most + 1, 0);
  const std::span<const DraftChild> found = lattice.children(key);
  for (const DraftChild& child : std::vector(found.begin(), found.end())) {
    const double here = chance * std::exp(double{child.logw});
    const std::vector<double> below = best_by_size(lattice, child.key, here, most);
    std::vector<double> with = best;
    for (std::size_t n = 1; n <= most; ++n) {
      for (std::size_t k = 1; k <= n; ++k) {
        with[n] = std::max(with[n], best[n - k] + here + below[k - 1]);
      }
    }
    best = with;
  }
  return best;
}

TEST(DraftTreeTest, NoTreeHoldsMore) {
  for (std::uint32_t seed = 0; seed < 10000; ++seed) {
    const bool by_path = seed % 2 == 0;
    const int tokens = 1 + static_cast<int>(seed / 2 % 5);
    const int depth = 1 + static_cast<int>(seed / 10 % 4);
    const std::size_t nodes = seed / 40 % 13;
    RandomLattice lattice(seed, tokens, depth, by_path);
    const std::vector<DraftNode> built =
        build_draft(lattice, {static_cast<std::int64_t>(nodes), depth, 0});
    const double best = best_by_size(lattice, Lattice::kRoot, 1, nodes)[nodes];
    EXPECT_NEAR(expected_tokens(built), best, 1e-12) << "seed " << seed;
  }
}

TEST(DraftTreeTest, ParentsComeFirstAndNothingTwice) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    RandomLattice lattice(seed, 5, 4, seed % 2 == 0);
    const std::vector<DraftNode> nodes = build_draft(lattice, {40, 3, 0});
    EXPECT_EQ(nodes.size(), 40U);
    std::set<std::pair<std::int32_t, Token>> seen;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      EXPECT_LT(nodes[i].parent, static_cast<std::int32_t>(i));
      EXPECT_TRUE(seen.emplace(nodes[i].parent, nodes[i].token).second);
      EXPECT_LE(nodes[i].depth, 3);
      const DraftNode above = nodes[i].parent < 0
                                  ? DraftNode{.depth = 0}
                                  : nodes[static_cast<std::size_t>(nodes[i].parent)];
      EXPECT_EQ(nodes[i].depth, above.depth + 1);
      EXPECT_LT(nodes[i].score, above.score);
      if (i > 0) {
        EXPECT_LE(nodes[i].score, nodes[i - 1].score);
      }
    }
  }
}

/// Equal chances go to what is nearer, then to what was found first: the same tree each time.
TEST(DraftTreeTest, TiesHaveAnOrder) {
  class Even final : public Lattice {
   public:
    std::span<const DraftChild> children(std::int32_t key) override {
      out_ = {{0, 0, 2 * key + 1}, {1, 0, 2 * key + 2}};
      return out_;
    }

   private:
    std::vector<DraftChild> out_;
  } even;
  const std::vector<DraftNode> nodes = build_draft(even, {6, 6, 0});
  ASSERT_EQ(nodes.size(), 6U);
  constexpr std::int32_t kParents[] = {-1, -1, 0, 1, 0, 1};
  constexpr Token kTokens[] = {0, 1, 0, 0, 1, 1};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(nodes[i].parent, kParents[i]) << i;
    EXPECT_EQ(nodes[i].token, kTokens[i]) << i;
  }
}

TEST(DraftTreeTest, LimitsHold) {
  RandomLattice lattice(1, 3, 6, true);
  EXPECT_TRUE(build_draft(lattice, {0, 6, 0}).empty());
  EXPECT_TRUE(build_draft(lattice, {8, 0, 0}).empty());
  for (const DraftNode& node : build_draft(lattice, {64, 6, 0.2})) {
    EXPECT_GE(std::exp(node.score), 0.2);
  }
  RandomLattice chain(1, 1, 6, true);
  const std::vector<DraftNode> nodes = build_draft(chain, {64, 6, 0});
  ASSERT_EQ(nodes.size(), 6U);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(nodes[i].parent, static_cast<std::int32_t>(i) - 1);
  }
}

}  // namespace
}  // namespace dendrite
