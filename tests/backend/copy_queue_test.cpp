// Copies of pages on a GPU wait for each other: what is done at once must give what copies one by
// one give.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "backend/cuda/stores/copy_queue.h"
#include "test_support.h"

namespace dendrite::cuda {
namespace {

using Pages = std::vector<std::vector<int>>;

void copy(Pages& pages, const Pages& from, const SlotCopy& copy) {
  std::copy_n(from[static_cast<std::size_t>(copy.from)].begin(), copy.tokens,
              pages[static_cast<std::size_t>(copy.to)].begin());
}

/// All reads before all writes, last copy first.
void copy_at_once(Pages& pages, const std::vector<SlotCopy>& copies) {
  const Pages before = pages;
  for (auto one = copies.rbegin(); one != copies.rend(); ++one) copy(pages, before, *one);
}

TEST(CopyQueue, GivesWhatCopiesOneByOneGive) {
  constexpr int kTokens = 16;
  testing_support::Random random(3);
  std::size_t launches = 0;
  for (int round = 0; round < 500; ++round) {
    const std::int64_t count = random.in(3, 12);
    Pages expected;
    for (int page = 0; page < count; ++page) {
      expected.emplace_back();
      for (int i = 0; i < kTokens; ++i) expected.back().push_back(100 * page + i);
    }
    Pages pages = expected;
    CopyQueue queue;
    for (int i = 0; i < 40; ++i) {
      SlotCopy one{static_cast<std::int32_t>(random.in(0, count - 1)),
                   static_cast<std::int32_t>(random.in(0, count - 2)),
                   static_cast<std::int32_t>(random.in(1, kTokens))};
      if (one.to >= one.from) ++one.to;
      copy(expected, Pages(expected), one);
      const std::vector<SlotCopy> before = queue.add(one);
      if (!before.empty()) ++launches;
      copy_at_once(pages, before);
    }
    copy_at_once(pages, queue.take());
    ASSERT_EQ(pages, expected) << "round " << round;
  }
  EXPECT_GT(launches, 100U);
}

TEST(CopyQueue, ChainsOfForksWaitTogether) {
  CopyQueue queue;
  for (std::int32_t page = 0; page < 8; ++page) {
    EXPECT_TRUE(queue.add({page, page + 1, 5}).empty()) << page;
  }
  const std::vector<SlotCopy> copies = queue.take();
  ASSERT_EQ(copies.size(), 8U);
  for (const SlotCopy& one : copies) EXPECT_EQ(one.from, 0);
  // Of more tokens than were copied some are the page's own.
  EXPECT_TRUE(queue.add({0, 1, 5}).empty());
  EXPECT_EQ(queue.add({1, 2, 6}), (std::vector<SlotCopy>{{0, 1, 5}}));
  EXPECT_EQ(queue.take(), (std::vector<SlotCopy>{{1, 2, 6}}));
}

}  // namespace
}  // namespace dendrite::cuda
