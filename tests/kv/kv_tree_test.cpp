#include "kv/kv_tree.h"

#include <chrono>
#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "dendrite/error.h"
#include "tests/kv/tree_harness.h"

namespace dendrite {
namespace {

using testing::TreeHarness;

class KvTreePages : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(PageTokens, KvTreePages, ::testing::Values(8, 16, 32));

// --- forking

TEST(KvTreeFork, TakesNoPageAndNoSegment) {
  TreeHarness h(16);
  Tip& parent = h.prompt(20);
  const KvTreeStats before = h.tree.stats();
  for (int i = 0; i < 10; ++i) h.fork(parent);
  EXPECT_EQ(h.tree.stats().segments, before.segments);
  EXPECT_EQ(h.tree.stats().used_pages, before.used_pages);
  EXPECT_TRUE(h.invariants_hold());
  EXPECT_TRUE(h.all_bytes_are_right());
}

TEST(KvTreeFork, AThousandForksOfALongBranchTakeLessThanAMillisecond) {
  TreeHarness h(256);
  Tip& parent = h.prompt(2048);
  double best_ms = 1e9;
  for (int repeat = 0; repeat < 20 && best_ms >= 1; ++repeat) {
    std::vector<Tip> forks(1000);
    const auto begin = std::chrono::steady_clock::now();
    for (Tip& fork : forks) fork = h.tree.fork(parent);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    best_ms = std::min(best_ms, took.count());
    for (Tip& fork : forks) h.tree.drop(fork);
  }
  EXPECT_LT(best_ms, 1);
}

TEST(KvTreeFork, TenForksFreedInAlternatingOrderLeaveTheRestIntact) {
  TreeHarness h(64);
  Tip& parent = h.prompt(20);
  std::vector<Tip*> forks;
  for (int i = 0; i < 10; ++i) forks.push_back(&h.fork(parent));
  for (Tip* fork : forks) h.append(*fork, 15);
  ASSERT_TRUE(h.step(forks));
  EXPECT_EQ(h.tree.stats().used_pages, 2 + 10 * 2);
  for (std::size_t i = 0; i < 10; i += 2) {
    h.drop(*forks[i]);
    EXPECT_TRUE(h.invariants_hold());
    EXPECT_TRUE(h.all_bytes_are_right());
  }
  EXPECT_EQ(h.tree.stats().used_pages, 2 + 5 * 2);
  h.drop(parent);
  for (std::size_t i = 1; i < 10; i += 2) {
    EXPECT_TRUE(h.all_bytes_are_right());
    h.drop(*forks[i]);
    EXPECT_TRUE(h.invariants_hold());
  }
  EXPECT_EQ(h.tree.stats().used_pages, 0);
  EXPECT_EQ(h.tree.stats().segments, 0);
}

TEST(KvTreeFork, OfAnEmptySequenceSharesNothing) {
  TreeHarness h(8);
  Tip& a = h.root();
  Tip& b = h.fork(a);
  h.extend(a, 3);
  h.extend(b, 4);
  EXPECT_EQ(h.tree.length(a), 3);
  EXPECT_EQ(h.tree.length(b), 4);
  EXPECT_TRUE(h.invariants_hold());
  EXPECT_TRUE(h.all_bytes_are_right());
}

TEST(KvTreeTokens, AreReadAcrossSegments) {
  TreeHarness h(16);
  Tip& a = h.root();
  const std::vector<Token> first{5, 6, 7};
  const std::vector<Token> second{8, 9};
  h.tree.append(a, first);
  Tip& b = h.fork(a);
  h.tree.append(b, second);
  EXPECT_EQ(h.tree.tokens(b), (std::vector<Token>{5, 6, 7, 8, 9}));
  EXPECT_EQ(h.tree.tokens(a), first);
  EXPECT_EQ(h.tree.token(b, 2), 7);
  EXPECT_EQ(h.tree.token(b, 3), 8);
  std::vector<Token> middle(2);
  h.tree.copy_tokens(b, 2, 4, middle.data());
  EXPECT_EQ(middle, (std::vector<Token>{7, 8}));
}

// --- copy-on-write

TEST_P(KvTreePages, DivergingChildCopiesTheSharedPageAndTheParentKeepsItsBytes) {
  const std::int64_t page = GetParam();
  TreeHarness h(16, page);
  Tip& parent = h.prompt(page + 4);  // page 1 holds 4
  Tip& child = h.fork(parent);
  const std::vector<std::int32_t> before(h.tree.table(parent).begin(), h.tree.table(parent).end());
  h.extend(child, 1);

  const auto child_table = h.tree.table(child);
  EXPECT_EQ(child_table[0], before[0]);
  EXPECT_NE(child_table[1], before[1]);
  const auto parent_table = h.tree.table(parent);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), parent_table.begin(), parent_table.end()));
  EXPECT_TRUE(h.bytes_are_right(parent));
  EXPECT_TRUE(h.bytes_are_right(child));
  EXPECT_EQ(h.tree.stats().copies_on_write, 1);
  EXPECT_EQ(h.tree.stats().copied_tokens, 4);  // the valid slots and nothing else
  EXPECT_EQ(h.tree.stats().used_pages, 3);

  h.extend(parent, 1);  // the child may read the parent's segment, not its next token
  EXPECT_TRUE(h.all_bytes_are_right());
  EXPECT_TRUE(h.invariants_hold());
}

TEST_P(KvTreePages, ForkAtAPageBorderCopiesNothing) {
  const std::int64_t page = GetParam();
  TreeHarness h(16, page);
  Tip& parent = h.prompt(2 * page);
  Tip& child = h.fork(parent);
  h.extend(child, 1);
  EXPECT_EQ(h.tree.stats().copies_on_write, 0);
  EXPECT_EQ(h.tree.stats().used_pages, 3);
  EXPECT_TRUE(h.all_bytes_are_right());
}

TEST(KvTreeWrite, LastHolderWritesInPlace) {
  TreeHarness h(2);  // a copy would not fit
  Tip& parent = h.prompt(20);
  Tip& child = h.fork(parent);
  h.drop(parent);
  h.extend(child, 1);
  EXPECT_EQ(h.tree.stats().copies_on_write, 0);
  EXPECT_TRUE(h.bytes_are_right(child));
  EXPECT_TRUE(h.invariants_hold());
}

TEST(KvTreeWrite, LastHolderWritesInPlaceAlsoIfTheParentWentAfterTheAppend) {
  TreeHarness h(2);
  Tip& parent = h.prompt(20);
  Tip& child = h.fork(parent);
  h.append(child, 12);
  h.drop(parent);
  ASSERT_TRUE(h.step({&child}));
  EXPECT_EQ(h.tree.stats().copies_on_write, 0);
  EXPECT_EQ(h.tree.stats().used_pages, 2);
  EXPECT_EQ(h.tree.stats().segments, 1);  // nothing but this branch is left
  EXPECT_TRUE(h.bytes_are_right(child));
  EXPECT_TRUE(h.invariants_hold());
}

TEST(KvTreeWrite, AParentGoneAfterTheCopyGivesItsPageBackAtTheNextStep) {
  TreeHarness h(8);
  Tip& parent = h.prompt(20);
  Tip& child = h.fork(parent);
  h.extend(child, 1);
  h.drop(parent);
  EXPECT_EQ(h.tree.stats().used_pages, 3);
  h.extend(child, 1);
  EXPECT_EQ(h.tree.stats().used_pages, 2);
  EXPECT_TRUE(h.bytes_are_right(child));
  EXPECT_TRUE(h.invariants_hold());
}

TEST(KvTreeWrite, SiblingsAreIsolated) {
  TreeHarness h(128);
  Tip& parent = h.prompt(37);
  std::vector<Tip*> forks;
  for (int i = 0; i < 8; ++i) forks.push_back(&h.fork(parent));
  for (int turn = 0; turn < 20; ++turn) {
    for (Tip* fork : forks) h.append(*fork, 1);
    ASSERT_TRUE(h.step(forks));
    ASSERT_TRUE(h.all_bytes_are_right());
  }
  EXPECT_TRUE(h.invariants_hold());
}

TEST_P(KvTreePages, LengthsAroundPageBorders) {
  const std::int64_t page = GetParam();
  for (const std::int64_t length :
       {page - 1, page, page + 1, 2 * page - 1, 2 * page, 2 * page + 1}) {
    for (const std::int64_t more : {std::int64_t{1}, page - 1, page, page + 1}) {
      TreeHarness h(16, page);
      Tip& parent = h.prompt(length);
      Tip& a = h.fork(parent);
      Tip& b = h.fork(parent);
      h.append(a, more);
      h.append(b, more);
      ASSERT_TRUE(h.step({&a, &b, &parent}));
      EXPECT_EQ(std::ssize(h.tree.table(a)), (length + more + page - 1) / page);
      ASSERT_TRUE(h.all_bytes_are_right()) << length << " + " << more;
      ASSERT_TRUE(h.invariants_hold());
      for (std::int64_t cut = 0; cut <= length + more; ++cut) {
        Tip& back = h.at(a, cut);
        EXPECT_EQ(h.tree.length(back), cut);
        h.extend(back, 2);
        ASSERT_TRUE(h.all_bytes_are_right()) << length << " + " << more << " at " << cut;
        ASSERT_TRUE(h.invariants_hold());
        h.drop(back);
      }
      h.drop_all();
      EXPECT_EQ(h.tree.stats().used_pages, 0);
    }
  }
}

TEST(KvTreeReserve, IsAllOrNothing) {
  TreeHarness h(4);
  Tip& parent = h.prompt(20);
  Tip& child = h.fork(parent);
  h.append(child, 40);  // own copy of page 1, and pages 2 and 3: one too many
  EXPECT_EQ(h.tree.pages_needed(child), 3);
  EXPECT_FALSE(h.tree.reserve(child));
  EXPECT_EQ(h.tree.stats().used_pages, 2);
  EXPECT_EQ(h.tree.stats().copies_on_write, 0);
  EXPECT_TRUE(h.bytes_are_right(parent));
  EXPECT_TRUE(h.invariants_hold());
  h.drop(parent);  // now page 1 is the child's alone
  EXPECT_EQ(h.tree.pages_needed(child), 2);
  EXPECT_TRUE(h.step({&child}));
  EXPECT_TRUE(h.bytes_are_right(child));
}

// --- parents that are not computed yet

TEST(KvTreePending, ParentsPendingRowsAreStoredInTheChildsPageToo) {
  TreeHarness h(16);
  Tip& parent = h.prompt(17);
  h.append(parent, 3);  // pending: 17, 18, 19
  Tip& child = h.fork(parent);
  h.append(child, 2);
  ASSERT_TRUE(h.step({&parent, &child}));
  EXPECT_EQ(h.tree.stats().copied_tokens, 1);  // slot 16 alone was there to be copied
  EXPECT_EQ(h.tree.computed(parent), 20);
  EXPECT_EQ(h.tree.computed(child), 22);
  EXPECT_TRUE(h.all_bytes_are_right());
  EXPECT_TRUE(h.invariants_hold());
}

TEST(KvTreePending, ExtraStoresNameTheOwnerAndTheSlot) {
  TreeHarness h(16);
  Tip& parent = h.prompt(17);
  h.append(parent, 1);
  Tip& child = h.fork(parent);
  h.append(child, 1);
  Tip& grandchild = h.fork(child);
  h.append(grandchild, 1);
  ASSERT_TRUE(h.tree.reserve(grandchild));
  std::vector<Segment*> chain;
  h.tree.missing_chain(grandchild, chain);
  ASSERT_EQ(chain.size(), 3u);
  EXPECT_EQ(chain[0], h.tree.segment(parent));
  EXPECT_EQ(chain[2], h.tree.segment(grandchild));

  std::vector<ExtraSlot> extra;
  h.tree.extra_stores(*chain[0], extra);
  EXPECT_TRUE(extra.empty());
  h.tree.extra_stores(*chain[2], extra);  // positions 17 and 18, of two ancestors
  ASSERT_EQ(extra.size(), 2u);
  const std::int64_t head = h.tree.table(grandchild)[1] * 16;
  EXPECT_EQ(extra[0].owner, chain[1]);
  EXPECT_EQ(extra[0].position, 18);
  EXPECT_EQ(extra[0].slot, head + 2);
  EXPECT_EQ(extra[1].owner, chain[0]);
  EXPECT_EQ(extra[1].slot, head + 1);
  EXPECT_EQ(h.tree.slot(*chain[2], 19), head + 3);
}

TEST(KvTreePending, APageReservedBeforeTheParentProgressedIsNotStale) {
  TreeHarness h(16);
  Tip& parent = h.prompt(17);
  h.append(parent, 3);
  Tip& child = h.fork(parent);
  h.append(child, 2);
  ASSERT_TRUE(h.tree.reserve(child));  // a step that never ran
  ASSERT_TRUE(h.step({&parent}));      // without the child: its page does not get 17, 18, 19
  ASSERT_TRUE(h.step({&child}));
  EXPECT_TRUE(h.all_bytes_are_right());
  EXPECT_TRUE(h.invariants_hold());
}

TEST(KvTreePending, ChunksThatEndInsideTheParentLeaveNoStaleCopy) {
  for (std::int64_t chunk = 1; chunk <= 7; ++chunk) {
    TreeHarness h(16);
    Tip& parent = h.prompt(17);
    h.append(parent, 5);
    Tip& child = h.fork(parent);
    h.append(child, 2);
    Tip& other = h.fork(child);
    h.append(other, 3);
    while (h.tree.computed(other) < h.tree.length(other)) {
      ASSERT_TRUE(h.step({&child, &other}, chunk));
      ASSERT_TRUE(h.invariants_hold());
    }
    EXPECT_TRUE(h.all_bytes_are_right()) << "chunks of " << chunk;
  }
}

TEST(KvTreePending, UnreserveGivesBackPagesThatNothingWasComputedIn) {
  TreeHarness h(16);
  Tip& parent = h.prompt(20);
  h.append(parent, 20);
  Tip& child = h.fork(parent);
  h.append(child, 40);
  ASSERT_TRUE(h.tree.reserve(child));
  EXPECT_GT(h.tree.stats().used_pages, 2);
  h.tree.unreserve(child);
  EXPECT_EQ(h.tree.stats().used_pages, 2);
  EXPECT_EQ(h.tree.table(child).size(), 2u);
  EXPECT_TRUE(h.invariants_hold());
  EXPECT_TRUE(h.all_bytes_are_right());
  ASSERT_TRUE(h.step({&child}));
  EXPECT_TRUE(h.all_bytes_are_right());
}

TEST(KvTreePending, UnreserveLeavesSegmentsInThePlanAlone) {
  TreeHarness h(16);
  Tip& parent = h.prompt(20);
  h.append(parent, 20);
  Tip& child = h.fork(parent);
  h.append(child, 20);
  ASSERT_TRUE(h.tree.reserve(child));
  h.tree.segment(parent)->plan_mark = 0;
  h.tree.unreserve(child);
  h.tree.segment(parent)->plan_mark = -1;
  EXPECT_EQ(h.tree.stats().used_pages, 3);  // the parent's 40 tokens
  EXPECT_TRUE(h.invariants_hold());
}

TEST(KvTreePending, ASiblingsReservationOutlivesUnreserve) {
  TreeHarness h(16);
  Tip& parent = h.prompt(18);
  h.append(parent, 20);  // pending, in pages 1 and 2
  Tip& a = h.fork(parent);
  Tip& b = h.fork(parent);
  h.append(a, 1);
  h.append(b, 1);
  ASSERT_TRUE(h.tree.reserve(a));
  ASSERT_TRUE(h.tree.reserve(b));
  h.tree.unreserve(a);  // takes the common ancestor's page 2 away; b keeps its own page 2
  EXPECT_TRUE(h.invariants_hold());
  ASSERT_TRUE(h.step({&b}));
  ASSERT_TRUE(h.step({&a}));
  EXPECT_TRUE(h.all_bytes_are_right());
  EXPECT_TRUE(h.invariants_hold());
}

TEST(KvTreePending, ATableEndsWhereAnAncestorHasNoPages) {
  TreeHarness h(16);
  Tip& parent = h.root();
  h.append(parent, 20);
  Tip& a = h.fork(parent);
  Tip& b = h.fork(parent);
  h.append(a, 20);
  h.append(b, 20);
  ASSERT_TRUE(h.tree.reserve(a));
  ASSERT_TRUE(h.tree.reserve(b));
  EXPECT_EQ(h.tree.table(b).size(), 3u);
  h.tree.unreserve(a);
  EXPECT_EQ(h.tree.table(b).size(), 0u);
  ASSERT_TRUE(h.step({&a, &b}));
  EXPECT_TRUE(h.all_bytes_are_right());
}

TEST(KvTreePending, ATableShowsComputedPositionsAlsoWhereAChildsPageIsStale) {
  TreeHarness h(16);
  Tip& parent = h.prompt(17);
  h.append(parent, 3);
  Tip& child = h.fork(parent);
  h.append(child, 20);
  ASSERT_TRUE(h.tree.reserve(child));
  ASSERT_TRUE(h.step({&parent}));
  EXPECT_EQ(h.tree.computed(child), 20);
  EXPECT_TRUE(h.bytes_are_right(child));
}

TEST(KvTreePending, ASegmentInThePlanIsNotMergedAway) {
  TreeHarness h(16);
  Tip& parent = h.prompt(20);
  h.append(parent, 1);
  Segment* planned = h.tree.segment(parent);
  planned->plan_mark = 0;
  Tip& child = h.fork(parent);
  h.append(child, 1);
  h.drop(parent);  // the child is its only reference now
  ASSERT_TRUE(h.tree.reserve(child));
  std::vector<Segment*> chain;
  h.tree.missing_chain(child, chain);
  ASSERT_EQ(chain.size(), 2u);
  EXPECT_EQ(chain[0], planned);
  planned->plan_mark = -1;
  ASSERT_TRUE(h.step({&child}));
  EXPECT_EQ(h.tree.stats().segments, 1);
  EXPECT_TRUE(h.bytes_are_right(child));
  EXPECT_TRUE(h.invariants_hold());
}

// --- rewinding

TEST(KvTreeAt, DroppingTheLongerBranchFreesEveryPagePastTheSplit) {
  TreeHarness h(16);
  Tip& branch = h.prompt(100);  // 7 pages
  EXPECT_EQ(h.tree.stats().used_pages, 7);
  Tip& back = h.at(branch, 35);
  EXPECT_EQ(h.tree.length(back), 35);
  EXPECT_EQ(h.tree.computed(back), 35);
  EXPECT_EQ(h.tree.stats().used_pages, 7);  // a slice: nothing was copied
  EXPECT_TRUE(h.invariants_hold());
  EXPECT_TRUE(h.all_bytes_are_right());
  h.drop(branch);
  EXPECT_EQ(h.tree.stats().used_pages, 3);
  EXPECT_TRUE(h.bytes_are_right(back));
  h.extend(back, 13);  // fills page 2 in place
  EXPECT_EQ(h.tree.stats().used_pages, 3);
  EXPECT_EQ(h.tree.stats().copies_on_write, 0);
  EXPECT_TRUE(h.bytes_are_right(back));
  EXPECT_TRUE(h.invariants_hold());
}

TEST(KvTreeAt, BothSidesOfACutDivergeWithoutHarm) {
  for (std::int64_t cut = 1; cut < 20; ++cut) {
    TreeHarness h(16);
    Tip& branch = h.prompt(20);
    Tip& back = h.at(branch, cut);
    h.append(back, 3);
    h.append(branch, 3);
    ASSERT_TRUE(h.step({&branch, &back}));
    ASSERT_TRUE(h.all_bytes_are_right()) << cut;
    ASSERT_TRUE(h.invariants_hold());
    h.drop(back);
    h.extend(branch, 10);
    ASSERT_TRUE(h.bytes_are_right(branch)) << cut;
    EXPECT_EQ(h.tree.stats().used_pages, 3);  // 33 tokens: what the cut cost is given back
    ASSERT_TRUE(h.invariants_hold());
  }
}

TEST(KvTreeAt, TheLongerBranchCopiesItsValidSlotsBeforeItWritesAPageAcrossTheCut) {
  TreeHarness h(16);
  Tip& branch = h.prompt(20);
  Tip& back = h.at(branch, 18);
  h.extend(branch, 1);
  EXPECT_EQ(h.tree.stats().copies_on_write, 1);
  EXPECT_EQ(h.tree.stats().copied_tokens, 4);
  EXPECT_NE(h.tree.table(branch)[1], h.tree.table(back)[1]);
  EXPECT_TRUE(h.all_bytes_are_right());
}

TEST(KvTreeAt, WorksOnTokensThatAreNotComputed) {
  for (std::int64_t cut = 15; cut < 28; ++cut) {
    TreeHarness h(16);
    Tip& branch = h.prompt(18);
    h.append(branch, 10);
    ASSERT_TRUE(h.tree.reserve(branch));
    Tip& back = h.at(branch, cut);
    ASSERT_TRUE(h.invariants_hold());
    EXPECT_EQ(h.tree.computed(back), std::min<std::int64_t>(cut, 18));
    h.append(back, 4);
    ASSERT_TRUE(h.step({&back}));
    ASSERT_TRUE(h.step({&branch}));
    ASSERT_TRUE(h.all_bytes_are_right()) << cut;
    ASSERT_TRUE(h.invariants_hold());
  }
}

TEST(KvTreeAt, MayCutASegmentWhileABatchIsUnderWay) {
  for (std::int64_t cut = 15; cut < 58; ++cut) {
    for (const std::int64_t rows : {3, 7, 10, 100}) {
      TreeHarness h(32);
      Tip& branch = h.prompt(18);
      h.append(branch, 40);
      Tip& child = h.fork(branch);
      h.append(child, 2);
      Tip* back = nullptr;
      h.step({&branch, &child}, rows, [&] { back = &h.at(branch, cut); });
      ASSERT_TRUE(h.invariants_hold());
      ASSERT_TRUE(h.all_bytes_are_right());
      h.step({back}, rows);  // must not write a page that the lower half holds
      ASSERT_TRUE(h.all_bytes_are_right());
      h.append(*back, 4);
      while (h.tree.computed(child) < h.tree.length(child)) h.step({&child, back}, rows);
      ASSERT_TRUE(h.step({back}));
      ASSERT_TRUE(h.all_bytes_are_right()) << "cut " << cut << " rows " << rows;
      ASSERT_TRUE(h.invariants_hold());
    }
  }
}

TEST(KvTreeAt, EndsOfTheRangeAndBordersSplitNothing) {
  TreeHarness h(16);
  Tip& parent = h.prompt(20);
  Tip& child = h.fork(parent);
  h.extend(child, 5);
  EXPECT_EQ(h.tree.length(h.at(child, 0)), 0);
  EXPECT_EQ(h.tree.segment(h.at(child, 25)), h.tree.segment(child));
  EXPECT_EQ(h.tree.segment(h.at(child, 20)), h.tree.segment(parent));
  EXPECT_EQ(h.tree.stats().splits, 0);
  EXPECT_TRUE(h.invariants_hold());
}

TEST(KvTreeAt, OutOfRangeSaysWhatWasExpected) {
  TreeHarness h(16);
  Tip& branch = h.prompt(20);
  for (const std::int64_t length : {-1, 21}) {
    try {
      h.at(branch, length);
      FAIL() << "no error";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(std::to_string(length)), std::string::npos) << text;
      EXPECT_NE(text.find("0 to 20"), std::string::npos) << text;
    }
  }
}

TEST(KvTreeLogits, StayAtTheirTokenAndGoWithAnAppend) {
  TreeHarness h(16);
  Tip& branch = h.prompt(20);
  const auto row = std::make_shared<const LogitsRow>();
  h.tree.segment(branch)->logits = row;
  Tip& back = h.at(branch, 10);
  EXPECT_EQ(h.tree.segment(back)->logits, nullptr);  // of token 9: nobody knows
  EXPECT_EQ(h.tree.segment(branch)->logits, row);
  Tip& child = h.fork(branch);
  h.append(child, 1);
  EXPECT_EQ(h.tree.segment(child)->logits, nullptr);
  EXPECT_EQ(h.tree.segment(branch)->logits, row);
  h.drop(child);
  h.append(branch, 1);  // in place
  EXPECT_EQ(h.tree.segment(branch)->logits, nullptr);
}

// --- depth

TEST(KvTreeDepth, AHundredForksDeepAndEveryOneIsRight) {
  TreeHarness h(512);
  Tip* tip = &h.prompt(5);
  for (int i = 0; i < 100; ++i) {
    tip = &h.fork(*tip);
    h.extend(*tip, 3);
  }
  EXPECT_EQ(h.tree.length(*tip), 305);
  EXPECT_TRUE(h.all_bytes_are_right());
  EXPECT_TRUE(h.invariants_hold());
  h.drop_all();
  EXPECT_EQ(h.tree.stats().used_pages, 0);
  EXPECT_EQ(h.tree.stats().segments, 0);
}

TEST(KvTreeDepth, TenThousandDeepFreesEverything) {
  TreeHarness h(16384);
  std::vector<Tip> tips;
  tips.push_back(h.tree.root());
  for (int i = 0; i < 10'000; ++i) {
    const Token token = i;
    h.tree.append(tips.back(), std::span(&token, 1));
    h.check_reads = i % 100 == 0;
    ASSERT_TRUE(h.step({&tips.back()}));
    if (i + 1 < 10'000) tips.push_back(h.tree.fork(tips.back()));
    if (i == 100) {
      ASSERT_TRUE(h.bytes_are_right(tips.back()));
    }
  }
  EXPECT_EQ(h.tree.stats().segments, 10'000);
  EXPECT_TRUE(h.bytes_are_right(tips.back()));
  for (std::size_t i = 0; i < tips.size(); i += 2) h.tree.drop(tips[i]);  // the last stays
  EXPECT_TRUE(h.bytes_are_right(tips.back()));
  std::vector<const Tip*> live;
  for (std::size_t i = 1; i < tips.size(); i += 2) live.push_back(&tips[i]);
  live.resize(50);
  for (std::size_t i = 101; i + 1 < tips.size(); i += 2) h.tree.drop(tips[i]);
  live.push_back(&tips.back());
  h.tree.check_invariants(live);
  for (Tip& tip : tips) h.tree.drop(tip);
  EXPECT_EQ(h.tree.stats().used_pages, 0);
  EXPECT_EQ(h.tree.stats().segments, 0);
}

TEST(KvTreeDepth, AChainOfAHundredThousandSegmentsIsMergedAndFreedWithoutRecursion) {
  constexpr int kDepth = 100'000;
  TreeHarness h(kDepth / 16 + 1);
  for (const bool run : {false, true}) {
    std::vector<Tip> tips;
    tips.push_back(h.tree.root());
    for (Token i = 0; i < kDepth; ++i) {
      if (i > 0) tips.push_back(h.tree.fork(tips.back()));
      h.tree.append(tips.back(), std::span(&i, 1));
    }
    EXPECT_EQ(h.tree.stats().segments, kDepth);
    for (std::size_t i = 0; i + 1 < tips.size(); ++i) h.tree.drop(tips[i]);
    if (run) {  // the last holder of all of it: one segment, no page more than the tokens need
      ASSERT_TRUE(h.step({&tips.back()}));
      EXPECT_EQ(h.tree.stats().segments, 1);
      EXPECT_EQ(h.tree.stats().used_pages, kDepth / 16);
      EXPECT_TRUE(h.bytes_are_right(tips.back()));
    }
    h.tree.drop(tips.back());
    EXPECT_EQ(h.tree.stats().segments, 0);
    EXPECT_EQ(h.tree.stats().used_pages, 0);
  }
}

TEST(KvTreeDepth, BeamsThatReplaceTheirParentsHoldNothingOfTheDead) {
  TreeHarness h(64);
  std::vector<Tip*> beam;
  for (int i = 0; i < 4; ++i) beam.push_back(&h.fork(i == 0 ? h.prompt(20) : *beam[0]));
  for (int turn = 0; turn < 60; ++turn) {
    std::vector<Tip*> next;  // one parent keeps two children, another none
    for (std::size_t i = 0; i < 4; ++i) next.push_back(&h.fork(*beam[i == 3 ? 0 : i]));
    for (Tip* tip : beam) h.drop(*tip);
    beam = next;
    for (Tip* tip : beam) h.append(*tip, 1);
    ASSERT_TRUE(h.step(beam)) << turn;
    ASSERT_TRUE(h.all_bytes_are_right()) << turn;
  }
  EXPECT_TRUE(h.invariants_hold());
}

// --- flat tables

TEST(KvTreeTable, SpansOfOtherTipsOutliveABranchThatDiverges) {
  TreeHarness h(64);
  Tip& parent = h.prompt(40);
  Tip& a = h.fork(parent);
  Tip& b = h.fork(parent);
  h.append(a, 40);
  h.append(b, 40);
  ASSERT_TRUE(h.tree.reserve(a));
  ASSERT_TRUE(h.tree.reserve(b));
  const auto parents = h.tree.table(parent);
  const std::vector<std::int32_t> parents_copy(parents.begin(), parents.end());
  const auto as = h.tree.table(a);
  const std::vector<std::int32_t> as_copy(as.begin(), as.end());
  const auto bs = h.tree.table(b);
  EXPECT_TRUE(std::equal(parents.begin(), parents.end(), parents_copy.begin(), parents_copy.end()));
  EXPECT_TRUE(std::equal(as.begin(), as.end(), as_copy.begin(), as_copy.end()));
  EXPECT_TRUE(std::equal(as.begin(), as.begin() + 2, bs.begin()));
  for (std::size_t i = 2; i < 5; ++i) EXPECT_NE(as[i], bs[i]);
}

TEST(KvTreeTable, ForksThatShareASegmentSeeItsNewPages) {
  TreeHarness h(64);
  Tip& parent = h.prompt(20);
  Tip& a = h.fork(parent);
  h.append(a, 4);
  Tip& b = h.fork(a);
  EXPECT_EQ(h.tree.table(b)[1], h.tree.table(parent)[1]);
  ASSERT_TRUE(h.step({&a}));  // gives their common segment its own page 1
  EXPECT_NE(h.tree.table(b)[1], h.tree.table(parent)[1]);
  EXPECT_EQ(h.tree.table(b)[1], h.tree.table(a)[1]);
  EXPECT_TRUE(h.all_bytes_are_right());
}

// --- statistics

TEST(KvTreeUsage, CountsSharedPagesOnceAndNaivelyForEveryBranch) {
  TreeHarness h(64);
  Tip& parent = h.prompt(64);
  std::vector<Tip*> forks;
  for (int i = 0; i < 8; ++i) forks.push_back(&h.fork(parent));
  for (Tip* fork : forks) h.append(*fork, 16);
  ASSERT_TRUE(h.step(forks));
  std::vector<const Tip*> tips(forks.begin(), forks.end());
  const KvUsage usage = h.tree.usage(tips);
  EXPECT_EQ(usage.unique_pages, 4 + 8);
  EXPECT_EQ(usage.naive_pages, 8 * 5);
  EXPECT_EQ(usage.unique_bytes, 12 * 16 * h.store.shape().token_bytes());
  EXPECT_EQ(usage.naive_bytes, 40 * 16 * h.store.shape().token_bytes());
  EXPECT_EQ(h.tree.own_pages(*forks[0]), 1);
  EXPECT_EQ(h.tree.own_pages(parent), 0);
}

TEST(KvTreeUsage, APageAcrossACutIsOnePage) {
  TreeHarness h(64);
  Tip& branch = h.prompt(60);
  Tip& back = h.at(branch, 20);
  const Tip* both[] = {&branch, &back};
  EXPECT_EQ(h.tree.usage(both).unique_pages, 4);
  EXPECT_EQ(h.tree.own_pages(branch), 2);  // pages 2 and 3; page 1 is the other's, too
  h.drop(back);
  EXPECT_EQ(h.tree.own_pages(branch), 4);
  const std::int64_t used = h.tree.stats().used_pages;
  h.drop(branch);
  EXPECT_EQ(used - h.tree.stats().used_pages, 4);
}

// --- strips

TEST(KvTreeStrips, ACutMovesNothingAndTheHalfThatGoesOnWritesInPlace) {
  TreeHarness h(16);
  Tip* branch = &h.prompt(100);
  const Strip* strip = h.tree.segment(*branch)->strip;
  for (int i = 0; i < 50; ++i) {
    Tip& upper = h.at(*branch, h.tree.length(*branch) - 1);
    EXPECT_EQ(h.tree.segment(upper)->strip, strip);
    EXPECT_EQ(h.tree.segment(*branch)->strip, strip);
    h.drop(*branch);
    h.extend(upper, 1);
    EXPECT_EQ(h.tree.segment(upper)->strip, strip);
    branch = &upper;
  }
  EXPECT_EQ(h.tree.stats().segments, 1);
  EXPECT_TRUE(h.all_bytes_are_right());
  EXPECT_TRUE(h.invariants_hold());
}

TEST(KvTreeStrips, TheShorterOfTwoThatAreMergedMoves) {
  for (const auto& [above, below] : {std::pair{90, 20}, std::pair{20, 90}}) {
    TreeHarness h(64);
    Tip& parent = h.prompt(above);
    Tip& child = h.fork(parent);
    h.extend(child, below);
    const Strip* of_parent = h.tree.segment(parent)->strip;
    const Strip* of_child = h.tree.segment(child)->strip;
    ASSERT_NE(of_parent, of_child);
    h.drop(parent);
    h.extend(child, 1);  // its reservation merges them
    EXPECT_EQ(h.tree.stats().segments, 1);
    EXPECT_EQ(h.tree.segment(child)->strip, above > below ? of_parent : of_child);
    EXPECT_TRUE(h.all_bytes_are_right());
    EXPECT_TRUE(h.invariants_hold());
  }
}

TEST(KvTreeStrips, ATwinGoesOnHoldingWhatTheOtherHeld) {
  TreeHarness h(64);
  const std::vector<Token> tokens = {7, 8, 9};
  std::vector<Tip*> twins;
  for (int i = 0; i < 4; ++i) {
    twins.push_back(&h.root());
    h.tree.append(*twins.back(), tokens);
  }
  EXPECT_EQ(h.tree.find_held(tokens).length, 0);
  h.step({twins[0], twins[1]});
  const Segment& third = *h.tree.segment(*twins[2]);
  EXPECT_EQ(h.tree.held_elsewhere(third, 0, 3), 3);
  h.step({twins[2]});
  h.drop(*twins[2]);
  h.drop(*twins[0]);
  EXPECT_EQ(h.tree.find_held(tokens).length, 3);
  const Segment& fourth = *h.tree.segment(*twins[3]);
  EXPECT_EQ(h.tree.held_elsewhere(fourth, 0, 3), 3);
  h.drop(*twins[1]);
  EXPECT_EQ(h.tree.held_elsewhere(fourth, 0, 3), 0);
  EXPECT_EQ(h.tree.find_held(tokens).length, 0);
}

}  // namespace
}  // namespace dendrite
