// Whatever a pass's runs: each row meets the state that its path has, behind the rows of its chunk
// in their order; nothing is read before it is written; all states behind chunks are kept.
#include "backend/cuda/recurrence/piece_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "test_support.h"

namespace dendrite::cuda {
namespace {

using testing_support::Random;

/// A tree of positions, of which some are rows of a pass.
class Forest {
 public:
  struct Node {
    int parent = -1;
    std::int64_t position = 0;
    std::int32_t row = -1;  // of the pass; -1: computed before
  };

  /// A run of `count` positions behind a node (-1: none), in the pass or before it. The last one.
  int add(int behind, std::int64_t count, bool in_pass) {
    RecurrencePlan::Run run;
    run.row_begin = static_cast<std::int32_t>(plan.journals.size());
    run.first_position = behind < 0 ? 0 : nodes[at(behind)].position + 1;
    const std::vector<int> chunk = chunk_of(behind);
    run.known = static_cast<std::int32_t>(chunk.size());
    run.known_begin = static_cast<std::int32_t>(plan.known.size());
    run.anchors_begin = static_cast<std::int32_t>(plan.anchors.size());
    run.anchor = anchor_before(behind, std::ssize(chunk));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t position = run.first_position + i;
      const int node = static_cast<int>(nodes.size());
      nodes.push_back({behind, position, in_pass ? rows_++ : -1});
      behind = node;
      if (!in_pass) continue;
      plan.journals.push_back(node);
      if (position % kChunkTokens == kChunkTokens - 1) plan.anchors.push_back(node);
    }
    if (!in_pass) return behind;
    run.row_end = run.row_begin + static_cast<std::int32_t>(count);
    plan.known.insert(plan.known.end(), chunk.begin(), chunk.end());
    plan.runs.push_back(run);
    return behind;
  }

  /// The nodes of the last one's chunk up to it, if the chunk goes on behind it.
  std::vector<int> chunk_of(int last) const {
    std::vector<int> out;
    if (last < 0 || nodes[at(last)].position % kChunkTokens == kChunkTokens - 1) return out;
    for (int node = last;; node = nodes[at(node)].parent) {
      out.insert(out.begin(), node);
      if (nodes[at(node)].position % kChunkTokens == 0) return out;
    }
  }
  /// The node that the state before the chunk is behind, which is its slot, too.
  int anchor_before(int last, std::int64_t in_chunk) const {
    for (std::int64_t i = 0; i < in_chunk; ++i) last = nodes[at(last)].parent;
    return last;
  }
  static std::size_t at(int node) { return static_cast<std::size_t>(node); }

  std::vector<Node> nodes;
  RecurrencePlan plan;  // slots are numbers of nodes

 private:
  std::int32_t rows_ = 0;
};

/// What runs find written, level by level.
class Written {
 public:
  explicit Written(const Forest& forest) : forest_(forest) {}

  bool has(int node, std::int32_t level) const {
    if (forest_.nodes[Forest::at(node)].row < 0) return true;
    const auto found = journals_.find(node);
    return found != journals_.end() && found->second < level;
  }
  bool has_state(int node, std::int32_t level) const {
    if (node < 0 || forest_.nodes[Forest::at(node)].row < 0) return true;
    const auto found = anchors_.find(node);
    return found != anchors_.end() && found->second < level;
  }
  void row(int node, std::int32_t level) { EXPECT_TRUE(journals_.emplace(node, level).second); }
  void state(int node, std::int32_t level) { EXPECT_TRUE(anchors_.emplace(node, level).second); }
  std::size_t rows() const { return journals_.size(); }
  std::size_t states() const { return anchors_.size(); }

 private:
  const Forest& forest_;
  std::map<int, std::int32_t> journals_;
  std::map<int, std::int32_t> anchors_;
};

class Checked {
 public:
  Checked(const Forest& forest, const PieceOrder& order)
      : forest_(forest), order_(order), written_(forest) {
    for (std::int32_t level = 0; level < static_cast<std::int32_t>(order.levels().size());
         ++level) {
      std::uint8_t kinds = 0;
      for (const PieceRun& run : order.runs().first(static_cast<std::size_t>(order.alone()))) {
        if (run.level != level) continue;
        alone(run);
        kinds |= PieceOrder::kAlone;
      }
      for (const RowFamily& family : order.families()) {
        if (family.level != level) continue;
        check(family);
        kinds |= PieceOrder::kFamilies;
      }
      EXPECT_EQ(order.levels()[static_cast<std::size_t>(level)], kinds);
    }
    EXPECT_EQ(written_.rows(), forest.plan.journals.size());
    EXPECT_EQ(written_.states(), forest.plan.anchors.size());
    pieces();
  }

 private:
  std::span<const std::int32_t> known(std::int32_t begin, std::int32_t count) const {
    return order_.known().subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
  }
  int node_of(std::int32_t row) const {
    return forest_.plan.journals[static_cast<std::size_t>(row)];
  }
  /// A row has this state before its chunk, and these before it in it.
  void meets(int node, int state, const std::vector<int>& before) const {
    std::vector<int> path;
    int at = node;
    for (std::size_t i = 0; i < before.size(); ++i) {
      at = forest_.nodes[Forest::at(at)].parent;
      path.insert(path.begin(), at);
    }
    EXPECT_EQ(before, path);
    EXPECT_EQ(forest_.nodes[Forest::at(at)].parent, state);
    EXPECT_EQ(forest_.nodes[Forest::at(at)].position % kChunkTokens, 0);
  }

  void alone(const PieceRun& of) {
    EXPECT_FALSE(of.in_family);
    EXPECT_EQ(of.known_rows, 0);
    int state = of.run.anchor;
    EXPECT_TRUE(written_.has_state(state, of.level));
    std::vector<int> before;
    std::int32_t next_anchor = of.run.anchors_begin;
    const auto chunk_ends = [&] {
      state = before.back();
      before.clear();
      EXPECT_EQ(forest_.plan.anchors[static_cast<std::size_t>(next_anchor++)], state);
      written_.state(state, of.level);
    };
    for (const int node : known(of.run.known_begin, of.run.known)) {
      EXPECT_TRUE(written_.has(node, of.level));
      before.push_back(node);
    }
    if (std::ssize(before) == kChunkTokens) chunk_ends();
    for (std::int32_t row = of.run.row_begin; row < of.run.row_end; ++row) {
      meets(node_of(row), state, before);
      written_.row(node_of(row), of.level);
      before.push_back(node_of(row));
      if (std::ssize(before) == kChunkTokens) chunk_ends();
    }
  }

  void check(const RowFamily& family) {
    EXPECT_TRUE(written_.has_state(family.anchor, family.level));
    EXPECT_LE(family.rows, kMostFamilyRows);
    EXPECT_LE(family.known, kMostFamilyKnown);
    EXPECT_EQ(family.first_slot % kChunkTokens, 0);
    EXPECT_EQ(family.places[kChunkTokens], family.rows);
    const auto known_nodes =
        std::span(family.journals).first(static_cast<std::size_t>(family.known));
    for (const int node : known_nodes) EXPECT_TRUE(written_.has(node, family.level));
    const auto rows = order_.family_rows().subspan(static_cast<std::size_t>(family.first_slot),
                                                   static_cast<std::size_t>(family.rows));
    for (std::int32_t i = 0; i < family.rows; ++i) {
      const FamilyRow& row = rows[static_cast<std::size_t>(i)];
      EXPECT_LE(family.places[row.place], i);
      EXPECT_GT(family.places[row.place + 1], i);
      EXPECT_EQ(row.journal, node_of(row.row));
      std::vector<int> before;
      for (std::int32_t j = 0; j < row.place; ++j) {
        const int of = row.before[j];
        if (of < kMostFamilyKnown) {
          ASSERT_LT(of, family.known);
          before.push_back(known_nodes[static_cast<std::size_t>(of)]);
          continue;
        }
        const FamilyRow& other = rows[static_cast<std::size_t>(of - kMostFamilyKnown)];
        EXPECT_LT(other.place, row.place);
        before.push_back(node_of(other.row));
      }
      meets(node_of(row.row), family.anchor, before);
    }
    for (const FamilyRow& row : rows) written_.row(node_of(row.row), family.level);
  }

  /// Each has its run's rows, their slots and, in a family, what is known of its rows as rows.
  void pieces() const {
    std::size_t number = 0;
    std::vector<std::int32_t> anchors;
    for (const PieceRun& run : order_.runs()) {
      if (run.level < 0) continue;
      EXPECT_EQ(run.first_piece, static_cast<std::int32_t>(number));
      const std::int64_t places = run.run.known + run.run.row_end - run.run.row_begin;
      std::int32_t row = run.run.row_begin;
      for (std::int64_t at = 0; at < places; at += kChunkTokens) {
        const RunPiece& piece = order_.pieces()[number++];
        EXPECT_EQ(piece.level, run.level);
        EXPECT_EQ(piece.place, at == 0 ? run.run.known : 0);
        EXPECT_EQ(run.run.row_begin + piece.first, row);
        for (std::int32_t i = 0; i < piece.count; ++i, ++row) {
          EXPECT_EQ(piece.journals[i], node_of(row));
          if (!run.in_family) continue;
          EXPECT_EQ(order_.family_rows()[static_cast<std::size_t>(piece.slots[i])].row, row);
        }
        EXPECT_TRUE(std::ranges::equal(
            known(run.run.known_begin, run.run.known),
            std::span(piece.known).first(static_cast<std::size_t>(run.run.known))));
        if (piece.new_anchor >= 0) anchors.push_back(piece.new_anchor);
      }
      EXPECT_EQ(row, run.run.row_end);
      if (!run.in_family) continue;
      EXPECT_LE(places, kChunkTokens);
      int node = node_of(run.run.row_begin);
      for (std::int32_t back = 1; back <= run.run.known; ++back) {
        node = forest_.nodes[Forest::at(node)].parent;
        const std::int32_t is = known(
            run.run.known_begin, run.run.known)[static_cast<std::size_t>(run.run.known - back)];
        EXPECT_EQ(is, back <= run.known_rows ? forest_.nodes[Forest::at(node)].row : node);
      }
    }
    for (; number < order_.pieces().size(); ++number) EXPECT_EQ(order_.pieces()[number].level, -1);
    std::vector<std::int32_t> kept = forest_.plan.anchors;
    std::ranges::sort(kept);
    std::ranges::sort(anchors);
    EXPECT_EQ(anchors, kept);
  }

  const Forest& forest_;
  const PieceOrder& order_;
  Written written_;
};

TEST(PieceOrder, RowsOfAnyTreeMeetWhatTheirPathsHave) {
  Random random(1);
  std::size_t families = 0;
  std::size_t fullest = 0;
  for (int round = 0; round < 300; ++round) {
    Forest forest;
    std::vector<int> tips;
    for (std::int64_t i = 0, end = random.in(1, 4); i < end; ++i) {
      tips.push_back(forest.add(-1, random.in(1, 40), false));
    }
    for (std::int64_t i = 0, end = random.in(1, 120); i < end; ++i) {
      const int behind = random.in(0, 30) == 0
                             ? -1
                             : tips[static_cast<std::size_t>(random.in(0, std::ssize(tips) - 1))];
      const bool is_long = random.in(0, 20) == 0;
      tips.push_back(forest.add(behind, is_long ? random.in(1, 60) : random.in(1, 4), true));
    }
    PieceOrder order;
    order.build(forest.plan, true);
    Checked(forest, order);
    families += order.families().size();
    for (const RowFamily& family : order.families()) {
      fullest = std::max(fullest, static_cast<std::size_t>(family.rows));
    }
    order.build(forest.plan, false);
    EXPECT_TRUE(order.families().empty());
    Checked(forest, order);
    if (testing::Test::HasFailure()) FAIL() << "round " << round;
  }
  EXPECT_GT(families, 300U);
  EXPECT_GT(fullest, static_cast<std::size_t>(kMostFamilyRows) * 3 / 4);
}

TEST(PieceOrder, ATreeOfDraftsIsOneFamilyOfOneLevel) {
  Forest forest;
  const int prompt = forest.add(-1, 20, false);
  const int first = forest.add(prompt, 6, true);  // a token and the first path
  const int second = forest.nodes[Forest::at(first)].parent;
  forest.add(first, 1, true);
  forest.add(second, 1, true);
  forest.add(static_cast<int>(forest.nodes.size()) - 1, 2, true);
  PieceOrder order;
  order.build(forest.plan, true);
  Checked(forest, order);
  ASSERT_EQ(order.families().size(), 1U);
  EXPECT_EQ(order.families()[0].rows, 10);
  EXPECT_EQ(order.families()[0].known, 4);
  ASSERT_EQ(order.levels().size(), 1U);
  EXPECT_EQ(order.levels()[0], PieceOrder::kFamilies);
  EXPECT_EQ(order.alone(), 0);
}

TEST(PieceOrder, WhatGoesOnBehindTheChunkKnowsAllOfIt) {
  Forest forest;
  const int prompt = forest.add(-1, 30, false);
  const int first = forest.add(prompt, 5, true);  // two of them in the next chunk
  forest.add(prompt, 1, true);
  forest.add(first, 1, true);
  PieceOrder order;
  order.build(forest.plan, true);
  Checked(forest, order);
  ASSERT_EQ(order.alone(), 1 + 1);
  const PieceRun& rest = order.runs()[0];
  EXPECT_EQ(rest.run.known, kChunkTokens);
  EXPECT_EQ(rest.run.row_end - rest.run.row_begin, 3);
  EXPECT_EQ(rest.level, 1);
  EXPECT_EQ(order.runs()[1].level, 2);
}

TEST(PieceOrder, RunsThatShareNoStateAreAlone) {
  Forest forest;
  const int one = forest.add(-1, 20, false);
  const int other = forest.add(-1, 40, false);
  forest.add(one, 3, true);
  forest.add(other, 3, true);
  PieceOrder order;
  order.build(forest.plan, true);
  Checked(forest, order);
  EXPECT_EQ(order.alone(), 2);
  EXPECT_TRUE(order.families().empty());
  EXPECT_EQ(order.pieces().size(), 2U);
}

}  // namespace
}  // namespace dendrite::cuda
