// Several branches as one argument: whichever way they are held.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "support/engine_support.h"

namespace dendrite {
namespace {

static_assert(std::is_convertible_v<std::vector<Branch>&, Branches>);
static_assert(std::is_convertible_v<std::array<Branch, 2>&, Branches>);
static_assert(std::is_convertible_v<std::span<Branch>, Branches>);
static_assert(std::is_convertible_v<std::vector<Branch*>, Branches>);
static_assert(std::is_convertible_v<const std::vector<Branch>&, ConstBranches>);
static_assert(std::is_convertible_v<std::vector<Branch*>&, ConstBranches>);
static_assert(std::is_convertible_v<Branches, ConstBranches>);
static_assert(!std::is_convertible_v<const std::vector<Branch>&, Branches>);
static_assert(!std::is_convertible_v<ConstBranches, Branches>);
static_assert(!std::is_convertible_v<std::vector<Branch>, Branches>);  // which would be gone

class BranchViewTest : public ::testing::Test {
 protected:
  const Engine engine_ = test::load("tinyllama");
  Session session_{engine_};
};

TEST_F(BranchViewTest, HandlesAndPointersAreTheSame) {
  Branch root = session_.prefill(std::span<const Token>(test::Random(1).tokens(9, 256)));
  std::vector<Branch> forks = root.fork(3);
  std::vector<Branch*> pointers;
  for (Branch& fork : forks) pointers.push_back(&fork);
  const Branches by_handle = forks;
  const Branches by_pointer = pointers;
  const ConstBranches fixed = by_pointer;
  ASSERT_EQ(by_handle.size(), 3U);
  ASSERT_EQ(fixed.size(), 3U);
  std::size_t place = 0;
  for (const Branch& branch : fixed) {
    EXPECT_EQ(&branch, &forks[place]);
    EXPECT_EQ(&by_handle[place], &forks[place]);
    EXPECT_EQ(by_handle.pointers()[place], pointers[place]);
    ++place;
  }
  EXPECT_EQ(place, 3U);
  EXPECT_TRUE(Branches().empty());
  const auto by_one = session_.next_tokens(by_handle, {.top = 2});
  const auto by_other = session_.next_tokens(by_pointer, {.top = 2});
  ASSERT_EQ(by_one.size(), by_other.size());
  for (std::size_t i = 0; i < by_one.size(); ++i) {
    ASSERT_EQ(by_one[i].size(), 2U);
    EXPECT_EQ(by_one[i][0].id, by_other[i][0].id);
    EXPECT_EQ(by_one[i][1].logprob, by_other[i][1].logprob);
  }
  session_.prune(by_pointer);
  for (const Branch& fork : forks) EXPECT_FALSE(fork.valid());
}

}  // namespace
}  // namespace dendrite
