// Which rows of a ring are of which slots.
#include "model/slot_rows.h"

#include <gtest/gtest.h>

namespace dendrite {
namespace {

TEST(SlotRowsTest, FindsWhatWasTakenLast) {
  SlotRows rows(8, 4);
  EXPECT_EQ(rows.find(-1), -1);
  EXPECT_EQ(rows.find(100), -1);
  const std::int64_t first = rows.take(3);
  for (std::int64_t i = 0; i < 3; ++i) rows.set(20 + i, first + i);
  EXPECT_EQ(rows.find(19), -1);
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(rows.find(20 + i), first + i);
  const std::int64_t second = rows.take(2);
  rows.set(21, second + 1);  // another token is there now
  EXPECT_EQ(rows.find(21), second + 1);
  EXPECT_EQ(rows.find(20), first);
}

TEST(SlotRowsTest, ForgetsWhatIsOverwritten) {
  SlotRows rows(8, 4);
  const auto add = [&](std::int64_t slot, std::int64_t count) {
    const std::int64_t first = rows.take(count);
    EXPECT_LE(first + count, 8);
    for (std::int64_t i = 0; i < count; ++i) rows.set(slot + i, first + i);
    return first;
  };
  const std::int64_t first = add(0, 5);
  EXPECT_EQ(add(10, 3), 5);
  EXPECT_EQ(rows.find(0), first);  // full, and nothing is lost
  EXPECT_EQ(add(20, 2), 0);
  EXPECT_EQ(rows.find(0), -1);
  EXPECT_EQ(rows.find(1), -1);
  EXPECT_EQ(rows.find(2), 2);
  EXPECT_EQ(rows.find(20), 0);
  EXPECT_EQ(add(30, 7), 0);  // which do not lie in one piece behind those
  for (const std::int64_t slot : {2, 10, 20}) EXPECT_EQ(rows.find(slot), -1) << slot;
  for (std::int64_t i = 0; i < 7; ++i) EXPECT_EQ(rows.find(30 + i), i);
  EXPECT_EQ(add(40, 8), 0);
  EXPECT_EQ(rows.find(36), -1);
  EXPECT_EQ(rows.find(47), 7);
}

TEST(SlotRowsTest, CopiesOfSlotsHaveTheSameRows) {
  SlotRows rows(8, 4);
  const std::int64_t first = rows.take(4);
  for (std::int64_t i = 0; i < 3; ++i) rows.set(4 + i, first + i);
  rows.set(14, first + 3);
  rows.copy_slots(1, 3, 3);  // slots 4 to 6 to 12 to 14
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(rows.find(12 + i), first + i);
  rows.copy_slots(5, 3, 2);  // of whose slots nothing is known
  EXPECT_EQ(rows.find(12), -1);
  EXPECT_EQ(rows.find(13), -1);
  EXPECT_EQ(rows.find(14), first + 2);
}

}  // namespace
}  // namespace dendrite
