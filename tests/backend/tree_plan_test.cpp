// Every row sees every token that it should exactly once and through the right page, in parts that
// the merge takes in order; whatever the number of workers that tiles are cut for.
#include "backend/cuda/attention/tree_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "step/attention_planner.h"
#include "tests/engine/growing_branches.h"

namespace dendrite::cuda {
namespace {

class Tree {
 public:
  /// A branch of `tokens` tokens that has the first `shared` pages of `parent` (-1: none), whose
  /// last `rows` tokens are queries.
  void add(int parent, std::int64_t shared, std::int64_t tokens, std::int32_t rows) {
    std::vector<std::int32_t> table;
    if (parent >= 0) {
      const auto& from = tables_[static_cast<std::size_t>(parent)];
      table.assign(from.begin(), from.begin() + std::min(shared, std::ssize(from)));
    }
    while (std::ssize(table) * kPageTokens < tokens) table.push_back(next_page_++);
    tables_.push_back(std::move(table));
    tokens_.push_back(tokens);
    rows_.push_back(rows);
  }
  static Tree random(std::mt19937& random, std::int64_t longest) {
    const auto in = [&](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    Tree tree;
    tree.add(-1, 0, in(1, longest), 1);
    for (std::int64_t branch = 1, end = in(1, 40); branch < end; ++branch) {
      const auto parent = static_cast<int>(in(-1, branch - 1));
      const std::int64_t own = in(1, in(0, 3) == 0 ? 700 : 40);
      const std::int64_t shared =
          parent < 0 ? 0 : in(0, tree.tokens_[static_cast<std::size_t>(parent)] / kPageTokens);
      const std::int64_t tokens = shared * kPageTokens + own;
      tree.add(
          parent, shared, tokens,
          static_cast<std::int32_t>(in(1, std::min<std::int64_t>(own, in(0, 2) == 0 ? 300 : 1))));
    }
    return tree;
  }

  AttentionPlan plan(AttentionWindow window) {
    std::vector<PlanSequence> sequences;
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      sequences.push_back({tables_[i], tokens_[i] - rows_[i], rows_[i]});
    }
    AttentionPlanner planner(kPageTokens);
    std::vector<std::int32_t> order;
    planner.order(sequences, order);
    std::vector<PlanSequence> ordered;
    branch_of_row_.clear();
    for (const std::int32_t i : order) {
      ordered.push_back(sequences[static_cast<std::size_t>(i)]);
      branch_of_row_.insert(branch_of_row_.end(),
                            static_cast<std::size_t>(rows_[static_cast<std::size_t>(i)]), i);
    }
    AttentionPlan plan;
    planner.build(ordered, window, plan);
    return plan;
  }
  std::int32_t page(std::size_t row, std::int64_t token) const {
    return tables_[static_cast<std::size_t>(branch_of_row_[row])]
                  [static_cast<std::size_t>(token / kPageTokens)];
  }

  static constexpr std::int64_t kPageTokens = 16;

 private:
  std::vector<std::vector<std::int32_t>> tables_;
  std::vector<std::int64_t> tokens_;
  std::vector<std::int32_t> rows_;
  std::vector<std::int32_t> branch_of_row_;
  std::int32_t next_page_ = 0;
};

/// Tokens [begin, end) that a slot's partial result is made of, by the tile that writes it.
struct Written {
  const TreeTile* tile = nullptr;
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

std::size_t tile_count(const TreePlan& flat) {
  return static_cast<std::size_t>(flat.counts()[0].tiles);
}

/// The block of the tile that holds `token` for `row`.
const TreeBlock* find_block(const TreePlan& flat, const TreeTile& tile, std::int32_t row,
                            std::int64_t token) {
  const TreeBlock* found = nullptr;
  for (std::int32_t i = 0; i < tile.block_count; ++i) {
    const TreeBlock& block = flat.blocks()[static_cast<std::size_t>(tile.first_block + i)];
    if (row < block.row_begin || row >= block.row_end) continue;
    if (token < block.begin || token >= block.end) continue;
    EXPECT_EQ(found, nullptr) << "row " << row << ", token " << token << " twice";
    found = &block;
  }
  return found;
}

void check(const Tree& tree, const AttentionPlan& plan, const TreePlan& flat) {
  std::vector<Written> slots(static_cast<std::size_t>(flat.slots()));
  ASSERT_GT(std::ssize(flat.tiles()), flat.counts()[0].tiles);
  ASSERT_EQ(flat.tiles().back().row_count, 0);
  for (const TreeTile& tile : std::span(flat.tiles()).first(tile_count(flat))) {
    if (tile.row_count == 0) continue;  // the second of a pair
    const auto first = static_cast<std::size_t>(tile.first_block);
    ASSERT_EQ(tile.first_page, flat.blocks()[first].first_page);
    for (std::size_t i = first; i < first + static_cast<std::size_t>(tile.block_count); ++i) {
      const TreeBlock& block = flat.blocks()[i];
      ASSERT_EQ(block.begin % kBlockTokens, 0);
      ASSERT_LT(block.begin, block.end);
      ASSERT_LE(block.end, block.begin + kBlockTokens);
      ASSERT_LE(tile.begin, block.begin);
      ASSERT_LE(block.end, tile.end);
      if (i > first) {
        ASSERT_GE(block.begin, flat.blocks()[i - 1].begin);
      }
    }
    ASSERT_EQ(tile.begin % kBlockTokens, 0);
    ASSERT_LT(tile.begin, tile.end);
    std::int32_t slot = tile.first_slot;
    for (std::int32_t begin = tile.begin; begin < tile.end;) {
      const std::int32_t end = segment_end(begin, tile.end);
      ASSERT_GT(end, begin);
      for (std::int32_t row = 0; row < tile.row_count; ++row) {
        ASSERT_EQ(slots[static_cast<std::size_t>(slot)].tile, nullptr);
        slots[static_cast<std::size_t>(slot++)] = {&tile, begin, end};
      }
      begin = end;
    }
  }
  for (std::size_t row = 0; row < plan.positions.size(); ++row) {
    const std::int64_t position = plan.positions[row];
    std::int64_t seen = plan.window.first_seen(position);
    for (std::int32_t i = flat.row_parts()[row]; i < flat.row_parts()[row + 1]; ++i) {
      const TreePart part = flat.parts()[static_cast<std::size_t>(i)];
      const Written& written = slots[static_cast<std::size_t>(part.slot)];
      ASSERT_NE(written.tile, nullptr);
      ASSERT_EQ(written.begin, part.begin);
      const TreeTile& tile = *written.tile;
      ASSERT_GE(static_cast<std::int32_t>(row), tile.row_begin);
      ASSERT_LT(static_cast<std::int32_t>(row), tile.row_begin + tile.row_count);
      ASSERT_LE(written.begin, seen);
      ASSERT_LE(tile.low, seen);
      const std::int64_t end = std::min<std::int64_t>(written.end, position + 1);
      ASSERT_LT(seen, end) << "row " << row << " has a part of nothing new";
      for (; seen < end; ++seen) {
        const TreeBlock* block = find_block(flat, tile, static_cast<std::int32_t>(row), seen);
        ASSERT_NE(block, nullptr) << "row " << row << ", token " << seen;
        const std::int32_t page = plan.pages[static_cast<std::size_t>(
            block->first_page + seen % kBlockTokens / Tree::kPageTokens)];
        ASSERT_EQ(page, tree.page(row, seen)) << "row " << row << ", token " << seen;
      }
    }
    ASSERT_EQ(seen, position + 1) << "row " << row;
  }
}

const AttentionWindow kWindows[] = {0, 100, 1000, {31, true}, {200, true}, {1024, true}};

TEST(TreePlan, RowsSeeEachTokenOnceInOrderHoweverTilesAreCut) {
  std::mt19937 random(5);
  TreePlan flat;
  for (int turn = 0; turn < 150; ++turn) {
    Tree tree = Tree::random(random, turn % 10 == 0 ? 10'000 : 1'500);
    for (const AttentionWindow& window : kWindows) {
      const AttentionPlan plan = tree.plan(window);
      for (const std::int64_t workers : {1, 40, 264, 2'000, 100'000}) {
        TreePlan::Shape shape;
        shape.tile_rows = turn % 3 == 0 ? 32 : 64;
        shape.slice_heads = turn % 7 == 0 ? 17 + turn % 16 : 1 + turn % 8;
        shape.slices = 2;
        shape.workers = workers;
        shape.pairs = turn % 2 == 0;
        shape.wide = turn % 4 == 1;
        flat.build(plan, shape);
        ASSERT_NO_FATAL_FAILURE(check(tree, plan, flat))
            << "turn " << turn << ", window " << window.size;
      }
    }
  }
}

template <typename T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

TEST(TreePlan, ATokenLaterThePlanIsThatOfAFreshOne) {
  for (std::uint32_t seed = 0; seed < 24; ++seed) {
    testing::GrowingBranches branches(seed, Tree::kPageTokens);
    TreePlan::Shape shape;
    shape.slice_heads = seed % 5 == 4 ? 40 : 1 << seed % 4;  // one row a tile, too
    shape.slices = 1 << seed % 3;
    shape.pairs = seed % 3 != 0;
    shape.wide = seed % 6 == 3;
    std::vector<AttentionWindow> windows = {
        0, 128 * (1 + seed % 8), 77 * (1 + seed), {51 * (1 + seed), true}};
    std::vector<TreePlan> flat(windows.size());
    for (int step = 0; step < 300; ++step) {
      if (step % 40 == 0) std::swap(windows[0], windows[step % 3]);
      if (step % 70 == 0) shape.workers = step % 140 == 0 ? 1 : 40 + seed % 2 * 224;
      branches.step();
      const std::vector<PlanSequence> sequences = branches.sequences();
      AttentionPlanner planner(Tree::kPageTokens);
      std::vector<std::int32_t> order;
      planner.order(sequences, order);
      std::vector<PlanSequence> ordered;
      for (const std::int32_t i : order) {
        ordered.push_back(sequences[static_cast<std::size_t>(i)]);
      }
      for (std::size_t i = 0; i < windows.size(); ++i) {
        AttentionPlan plan;
        planner.build(ordered, windows[i], plan);
        TreePlan fresh;
        flat[i].build(plan, shape);
        fresh.build(plan, shape);
        const bool same = same_bytes(flat[i].tiles(), fresh.tiles()) &&
                          same_bytes(flat[i].blocks(), fresh.blocks()) &&
                          same_bytes(flat[i].parts(), fresh.parts()) &&
                          same_bytes(flat[i].counts(), fresh.counts()) &&
                          flat[i].row_parts() == fresh.row_parts() &&
                          flat[i].slots() == fresh.slots();
        ASSERT_TRUE(same) << "seed " << seed << ", step " << step << ", window " << windows[i].size;
      }
    }
  }
}

TEST(TreePlan, SlicesOfHeadsAreAsFewAsTilesAllowAndHoldEachHead) {
  for (const std::int64_t head_dim : {64, 80, 96, 128, 192, 256, 320, 512, 576}) {
    for (std::int64_t group = 1; group <= 300; ++group) {
      const HeadSlices slices = slice_heads(group, tile_rows(head_dim));
      ASSERT_LE(slices.heads, tile_rows(head_dim));
      ASSERT_LE(slices.heads, group);
      ASSERT_GE(slices.count * slices.heads, group);
      ASSERT_LT((slices.count - 1) * tile_rows(head_dim), group);
    }
  }
}

TEST(TreePlan, BranchesWhosePositionsFollowOneAnotherStayApart) {
  Tree tree;
  tree.add(-1, 0, 41, 41);
  tree.add(-1, 0, 81, 40);  // rows of positions 41 to 80, after those of 0 to 40
  const AttentionPlan plan = tree.plan(0);
  TreePlan flat;
  TreePlan::Shape shape;
  shape.slice_heads = 4;
  flat.build(plan, shape);
  check(tree, plan, flat);
}

TEST(TreePlan, ASharedPrefixIsReadOnceATileOfRows) {
  Tree tree;
  tree.add(-1, 0, 4096, 1);
  for (int i = 0; i < 32; ++i) tree.add(0, 256, 4096 + 64, 1);
  TreePlan flat;
  TreePlan::Shape shape;
  shape.slice_heads = 4;
  shape.slices = 8;
  shape.workers = 264;
  flat.build(tree.plan(0), shape);
  // 33 rows are three tiles of rows, and the prefix is cut into runs of four blocks.
  EXPECT_EQ(tile_count(flat), 3u * 8 + 32);
  EXPECT_EQ(std::ssize(flat.blocks()), 3 * 32 + 32);
}

TEST(TreePlan, APrefillChunkHasOneTileACellOfRows) {
  Tree tree;
  tree.add(-1, 0, 4096, 2048);
  TreePlan flat;
  TreePlan::Shape shape;
  shape.slice_heads = 4;
  shape.slices = 8;
  shape.workers = 264;
  flat.build(tree.plan(0), shape);
  EXPECT_EQ(tile_count(flat), 128u);
  EXPECT_GT(flat.tiles()[0].end, 4096 - 128);  // the heaviest are first
  EXPECT_LE(flat.slots(), 2 * 2048);
}

TEST(TreePlan, AWideNodeIsPairsOfTilesOfTheSameTokens) {
  Tree tree;
  for (int i = 0; i < 32; ++i) tree.add(i == 0 ? -1 : 0, 256, 4096, 1);
  TreePlan flat;
  TreePlan::Shape shape;
  shape.slice_heads = 4;
  shape.slices = 8;
  shape.workers = 132;
  shape.pairs = true;
  flat.build(tree.plan(0), shape);
  ASSERT_GT(tile_count(flat), 0u);
  for (std::size_t i = 0; i < tile_count(flat); i += 2) {
    const TreeTile& first = flat.tiles()[i];
    const TreeTile& second = flat.tiles()[i + 1];
    EXPECT_EQ(first.row_count, 16);
    EXPECT_EQ(second.row_begin, 16);
    EXPECT_EQ(second.row_count, 16);
    EXPECT_EQ(first.first_block, second.first_block);
  }
  EXPECT_EQ(std::ssize(flat.blocks()), 32);
}

TEST(TreePlan, EveryWorkerStopsWithinTheList) {
  std::mt19937 random(4);
  for (const std::int64_t workers : {1, 3, 20, 132}) {
    for (const std::int64_t kv_heads : {1, 2, 8}) {
      Tree tree = Tree::random(random, 3000);
      TreePlan flat;
      TreePlan::Shape shape;
      shape.slices = kv_heads;
      shape.workers = workers;
      shape.pairs = true;
      flat.build(tree.plan(0), shape);
      for (std::int64_t worker = 0; worker < workers; ++worker) {
        for (std::int64_t round = 0;; ++round) {
          const std::int64_t pair = dealt_work(round, worker, workers) / kv_heads;
          ASSERT_LT(2 * pair + 1, std::ssize(flat.tiles())) << "round " << round;
          if (flat.tiles()[static_cast<std::size_t>(2 * pair)].row_count == 0) break;
        }
      }
    }
  }
}

/// Tiles of short branches behind a shared prefix that hold several of them.
int bundles_of(int branches) {
  Tree tree;
  tree.add(-1, 0, 512, 1);
  for (int i = 0; i < branches; ++i) tree.add(0, 32, 512 + 64, 1);
  TreePlan flat;
  TreePlan::Shape shape;
  shape.slice_heads = 4;
  shape.slices = 8;
  shape.workers = 132;
  shape.pairs = true;
  const AttentionPlan plan = tree.plan(0);
  flat.build(plan, shape);
  check(tree, plan, flat);
  int bundles = 0;
  for (const TreeTile& tile : std::span(flat.tiles()).first(tile_count(flat))) {
    if (tile.begin == 512 && tile.block_count > 1) ++bundles;
  }
  return bundles;
}

TEST(TreePlan, ShortBranchesShareATileWhenTheyAreMany) {
  EXPECT_EQ(bundles_of(16), 0);  // a worker for each and head
  const auto expect = [](int branches, int least_each, int most_each) {
    const int bundles = bundles_of(branches);
    EXPECT_GE(bundles, branches / most_each) << branches;
    EXPECT_LE(bundles, branches / least_each) << branches;
  };
  expect(32, 2, 3);
  expect(64, 3, 5);
  expect(128, 5, 7);
}

}  // namespace
}  // namespace dendrite::cuda
