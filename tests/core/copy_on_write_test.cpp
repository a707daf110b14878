#include "core/copy_on_write.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace dendrite {
namespace {

using Value = CopyOnWrite<std::shared_ptr<int>>;

TEST(CopyOnWriteTest, IsTheDefaultInAPointer) {
  static_assert(sizeof(Value) == sizeof(void*));
  Value value;
  EXPECT_TRUE(value.is_default());
  EXPECT_EQ(*value, nullptr);
  value.edit() = std::make_shared<int>(1);
  EXPECT_FALSE(value.is_default());
  value.reset();
  EXPECT_TRUE(value.is_default());
  EXPECT_EQ(*value, nullptr);
}

TEST(CopyOnWriteTest, CopiesShareUntilOneChanges) {
  const auto one = std::make_shared<int>(1);
  Value first;
  first.edit() = one;
  const Value second = first;
  Value third;
  third = second;
  EXPECT_EQ(&*first, &*second);
  EXPECT_EQ(&*first, &*third);
  EXPECT_EQ(one.use_count(), 2);
  third.edit() = std::make_shared<int>(3);
  EXPECT_EQ(*first, one);
  EXPECT_EQ(*second, one);
  EXPECT_EQ(**third, 3);
  const auto* const place = &*third;
  EXPECT_EQ(&third.edit(), place);  // nobody shares it
}

TEST(CopyOnWriteTest, GoesWithItsLastOwner) {
  const auto one = std::make_shared<int>(1);
  {
    std::vector<Value> all(4);
    all[0].edit() = one;
    for (std::size_t i = 1; i < all.size(); ++i) all[i] = all[i - 1];
    all[0].reset();
    all[1] = Value();
    const Value moved = std::move(all[2]);
    EXPECT_EQ(one.use_count(), 2);
    all[3] = all[3];
    EXPECT_EQ(*all[3], one);
  }
  EXPECT_EQ(one.use_count(), 1);
}

}  // namespace
}  // namespace dendrite
