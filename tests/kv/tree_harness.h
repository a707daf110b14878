#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kv/kv_debug.h"
#include "kv/kv_tree.h"
#include "tests/kv/host_kv_store.h"

namespace dendrite::testing {

/// Seeds of a random test: DENDRITE_TEST_SCALE times the usual number.
inline std::uint32_t scaled(std::uint32_t usual) {
  const char* scale = std::getenv("DENDRITE_TEST_SCALE");
  return scale == nullptr ? usual : static_cast<std::uint32_t>(usual * std::atof(scale)) + 1;
}

/// A KvTree over real memory, and a step that does to its pages what a forward pass does: a
/// position's K and V are a function of all tokens up to it, so bytes of another branch, or stale
/// ones, show.
class TreeHarness {
 public:
  enum class Mode : std::uint8_t { kPlain, kDebug };
  explicit TreeHarness(std::int64_t pages, std::int64_t page_tokens = 16, Mode mode = Mode::kPlain)
      : store({.layers = 2,
               .kv_heads = 1,
               .head_dim = 2,
               .pages = pages,
               .page_tokens = page_tokens,
               .format = KvFormat::kF32,
               .guarded = mode == Mode::kDebug}),
        debug(mode == Mode::kDebug ? std::make_unique<KvDebug>(store) : nullptr),
        tree(store, debug.get()) {}
  ~TreeHarness() {
    for (const auto& tip : tips) tree.drop(*tip);
  }

  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

  /// The harness owns the tip.
  Tip& keep(Tip tip) {
    tips.push_back(std::make_unique<Tip>(std::move(tip)));
    return *tips.back();
  }
  Tip& root() { return keep(tree.root()); }
  Tip& fork(const Tip& tip) { return keep(tree.fork(tip)); }
  Tip& at(const Tip& tip, std::int64_t length) { return keep(tree.at(tip, length)); }
  void drop(Tip& tip) {
    const auto found = std::find_if(tips.begin(), tips.end(),
                                    [&](const auto& kept) { return kept.get() == &tip; });
    ASSERT_NE(found, tips.end());
    tree.drop(tip);
    tips.erase(found);
  }
  void drop_all() {
    while (!tips.empty()) drop(*tips.back());
  }
  /// Appends `count` tokens that nobody else has.
  void append(Tip& tip, std::int64_t count) {
    std::vector<Token> tokens;
    for (std::int64_t i = 0; i < count; ++i) tokens.push_back(next_token_++);
    tree.append(tip, tokens);
  }
  /// append() and step() until it is computed.
  void extend(Tip& tip, std::int64_t count) {
    append(tip, count);
    Tip* tips_to_run[] = {&tip};
    step(tips_to_run);
    ASSERT_EQ(tree.computed(tip), tree.length(tip));
  }
  Tip& prompt(std::int64_t length) {
    Tip& tip = root();
    extend(tip, length);
    return tip;
  }

  /// One turn of the engine for these tips: reserve, plan at most `max_rows` rows, forward, commit.
  /// `meanwhile` runs between planning and forward, as another thread may. Returns false when some
  /// tip got no pages.
  bool step(std::span<Tip* const> run, std::int64_t max_rows = kNoLimit,
            const std::function<void()>& meanwhile = {}) {
    const bool all = plan(run, max_rows);
    if (meanwhile) meanwhile();
    forward();
    commit();
    return all;
  }
  bool step(std::initializer_list<Tip*> run, std::int64_t max_rows = kNoLimit,
            const std::function<void()>& meanwhile = {}) {
    return step(std::span<Tip* const>(run.begin(), run.size()), max_rows, meanwhile);
  }

  /// What a forward pass stores for each position of these tokens.
  static std::vector<std::uint64_t> contents(std::span<const Token> tokens) {
    std::vector<std::uint64_t> out;
    std::uint64_t hash = 0x243F6A8885A308D3u;
    for (const Token token : tokens) {
      hash = (hash ^ static_cast<std::uint64_t>(token + 1)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
      out.push_back(hash);
    }
    return out;
  }

  /// Every computed position of the tip, read through its page table, holds its own K and V.
  ::testing::AssertionResult bytes_are_right(Tip& tip) {
    const std::vector<std::uint64_t> expected = contents(tree.tokens(tip));
    const std::int64_t computed = tree.computed(tip);
    const std::span<const std::int32_t> table = tree.table(tip);
    if (!mark_is_right(table, KvTree::table_mark(tip))) {
      return ::testing::AssertionFailure() << "settled entries changed under a stamp";
    }
    if (std::ssize(table) * tree.page_tokens() < computed) {
      return ::testing::AssertionFailure() << "the table has " << table.size() << " entries for "
                                           << computed << " computed positions";
    }
    for (std::int64_t p = 0; p < computed; ++p) {
      if (!store.holds(slot_in(table, p), expected[static_cast<std::size_t>(p)])) {
        return ::testing::AssertionFailure()
               << "position " << p << " of " << computed << " holds other bytes than its own; page "
               << table[static_cast<std::size_t>(p / tree.page_tokens())] << "\n"
               << tree.dump();
      }
    }
    return ::testing::AssertionSuccess();
  }
  /// Entries that were settled when a table had this stamp before are the same now.
  bool mark_is_right(std::span<const std::int32_t> table, const KvTree::TableMark& mark) {
    std::vector<std::int32_t>& settled = settled_[mark.stamp];
    const std::size_t known = std::min(settled.size(), table.size());
    if (mark.stamp == 0 || !std::equal(settled.begin(), settled.begin() + known, table.begin())) {
      return false;
    }
    if (mark.settled > std::ssize(settled)) {
      settled.assign(table.begin(), table.begin() + mark.settled);
    }
    return true;
  }
  ::testing::AssertionResult all_bytes_are_right() {
    for (const auto& tip : tips) {
      if (auto result = bytes_are_right(*tip); !result) return result;
    }
    return ::testing::AssertionSuccess();
  }

  std::vector<const Tip*> live_tips() const {
    std::vector<const Tip*> live;
    for (const auto& tip : tips) live.push_back(tip.get());
    return live;
  }
  ::testing::AssertionResult invariants_hold() const {
    try {
      if (debug != nullptr) {
        debug->check(tree, live_tips());
      } else {
        tree.check_invariants(live_tips());
      }
    } catch (const std::exception& error) {
      return ::testing::AssertionFailure() << error.what();
    }
    return ::testing::AssertionSuccess();
  }

  std::int64_t slot_in(std::span<const std::int32_t> table, std::int64_t position) const {
    return table[static_cast<std::size_t>(position / tree.page_tokens())] * tree.page_tokens() +
           position % tree.page_tokens();
  }

  HostKvStore store;
  std::unique_ptr<KvDebug> debug;
  KvTree tree;
  std::vector<std::unique_ptr<Tip>> tips;
  bool check_reads = true;  // of every row in every step: O(length) a row

 private:
  struct Run {
    Segment* segment = nullptr;
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::vector<std::int32_t> table;  // through which its rows attend
    std::vector<std::uint64_t> contents;
  };
  struct Store {
    std::int64_t slot = 0;
    std::uint64_t what = 0;
  };

  bool plan(std::span<Tip* const> run, std::int64_t max_rows) {
    bool all = true;
    runs_.clear();
    stores_.clear();
    std::vector<Segment*> chain;
    for (Tip* tip : run) {
      const std::int64_t needed = tree.pages_needed(*tip);
      const std::int32_t free_before = tree.pool().free_pages();
      if (!tree.reserve(*tip)) {
        EXPECT_GT(needed, free_before);
        EXPECT_EQ(tree.pool().free_pages(), free_before);
        all = false;
        continue;
      }
      EXPECT_EQ(tree.pool().free_pages(), free_before - needed);
      const std::vector<Token> tokens = tree.tokens(*tip);
      tree.missing_chain(*tip, chain);
      for (Segment* segment : chain) {
        if (segment->plan_mark >= 0) {
          if (runs_[static_cast<std::size_t>(segment->plan_mark)].end < segment->end()) break;
          continue;
        }
        const std::int64_t count = std::min(max_rows, segment->end() - segment->computed);
        if (count == 0) break;
        max_rows -= count;
        segment->plan_mark = static_cast<std::int32_t>(runs_.size());
        Run& planned = runs_.emplace_back();
        planned.segment = segment;
        planned.begin = segment->computed;
        planned.end = segment->computed + count;
        planned.contents = contents(std::span(tokens).first(static_cast<std::size_t>(planned.end)));
        planned.table = table_of(*tip, *segment);
        if (planned.end < segment->end()) break;
      }
    }
    std::vector<ExtraSlot> extra;
    for (const Run& planned : runs_) {
      for (std::int64_t p = planned.begin; p < planned.end; ++p) {
        add_store(tree.slot(*planned.segment, p), planned, p);
      }
      extra.clear();
      tree.extra_stores(*planned.segment, extra);
      for (const ExtraSlot& slot : extra) {
        if (slot.owner->plan_mark < 0) continue;
        const Run& owner = runs_[static_cast<std::size_t>(slot.owner->plan_mark)];
        if (slot.position < owner.end) add_store(slot.slot, owner, slot.position);
      }
    }
    for (const Run& planned : runs_) planned.segment->plan_mark = -1;
    return all;
  }

  /// The tip's table as seen from a segment of its chain.
  std::vector<std::int32_t> table_of(Tip& tip, const Segment& segment) {
    const std::span<const std::int32_t> table = tree.table(tip);
    EXPECT_EQ(std::ssize(table), (tree.length(tip) + tree.page_tokens() - 1) / tree.page_tokens());
    std::vector<std::int32_t> out(table.begin(),
                                  table.begin() + segment.begin / tree.page_tokens());
    for (std::int64_t i = 0; i < segment.page_count; ++i) out.push_back(index_of(segment.page(i)));
    return out;
  }

  void add_store(std::int64_t slot, const Run& owner, std::int64_t position) {
    const auto page = static_cast<PageId>(slot / tree.page_tokens());
    EXPECT_EQ(tree.pool().holders(page), 1) << "a write into a shared page\n" << tree.dump();
    EXPECT_EQ(slot % tree.page_tokens(), position % tree.page_tokens());
    if (debug != nullptr) debug->check_write(tree, slot);
    stores_.push_back({slot, owner.contents[static_cast<std::size_t>(position)]});
  }

  void forward() {
    for (const Store& write : stores_) store.store(write.slot, write.what);
    if (!check_reads) return;
    for (const Run& run : runs_) {  // attention reads everything up to the row itself
      for (std::int64_t p = 0; p < run.end; ++p) {
        ASSERT_TRUE(store.holds(slot_in(run.table, p), run.contents[static_cast<std::size_t>(p)]))
            << "a row of [" << run.begin << ", " << run.end << ") sees wrong bytes at " << p;
      }
    }
  }

  void commit() {
    std::sort(runs_.begin(), runs_.end(),
              [](const Run& a, const Run& b) { return a.begin < b.begin; });
    std::vector<Segment*> parts;  // the segment may have been split meanwhile
    for (const Run& run : runs_) {
      parts.clear();
      for (Segment* s = run.segment; s != nullptr && s->end() > run.begin; s = s->parent) {
        parts.push_back(s);
      }
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        tree.set_computed(**part, std::max((*part)->computed, std::min(run.end, (*part)->end())));
      }
    }
  }

  std::vector<Run> runs_;
  std::vector<Store> stores_;
  std::map<std::uint64_t, std::vector<std::int32_t>> settled_;  // by stamp
  Token next_token_ = 0;
};

}  // namespace dendrite::testing
