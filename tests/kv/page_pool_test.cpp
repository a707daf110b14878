#include "kv/page_pool.h"

#include <set>
#include <stdexcept>

#include <gtest/gtest.h>

namespace dendrite {
namespace {

TEST(PagePool, HandsOutEveryPageOnceAndThenNone) {
  PagePool pool(5);
  std::set<PageId> pages;
  for (int i = 0; i < 5; ++i) {
    const auto page = pool.try_acquire();
    ASSERT_TRUE(page.has_value());
    EXPECT_EQ(pool.holders(*page), 1);
    pages.insert(*page);
  }
  EXPECT_EQ(pages.size(), 5u);
  EXPECT_FALSE(pool.try_acquire().has_value());
  EXPECT_EQ(pool.free_pages(), 0);
  EXPECT_EQ(pool.used_pages(), 5);
  pool.check_invariants();
}

TEST(PagePool, APageIsFreeWhenItsLastHolderReleasesIt) {
  PagePool pool(1);
  const PageId page = *pool.try_acquire();
  pool.retain(page);
  pool.retain(page);
  EXPECT_EQ(pool.holders(page), 3);
  pool.release(page);
  pool.release(page);
  EXPECT_FALSE(pool.try_acquire().has_value());
  pool.check_invariants();
  pool.release(page);
  EXPECT_EQ(pool.free_pages(), 1);
  EXPECT_EQ(pool.holders(page), 0);
  EXPECT_EQ(pool.try_acquire(), page);
  pool.check_invariants();
}

TEST(PagePool, AnEmptyPoolHasNothing) {
  PagePool pool(0);
  EXPECT_FALSE(pool.try_acquire().has_value());
  pool.check_invariants();
}

}  // namespace
}  // namespace dendrite
