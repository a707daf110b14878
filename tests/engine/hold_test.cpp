// Branches on hold keep K and V while they wait, for as long as they asked and no longer.
#include <gtest/gtest.h>

#include "support/engine_support.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

using std::chrono::milliseconds;
using test::bits_of;
using test::greedy;
using test::load;
using test::Random;
using test::replay;
using test::same_bits;
using test::Tokens;

/// A pool of 8 pages, and a clock that a test moves.
class Hold : public ::testing::Test {
 protected:
  Hold() {
    core_of(engine)->now = [this] { return EngineTime(milliseconds(1000)) + waited; };
  }
  Branch prefill(std::int64_t tokens) { return session.prefill(random.tokens(tokens, 256)); }
  std::int64_t computed(const Branch& branch) const {
    return core_of(engine)->tree->computed(state_of(branch)->tip);
  }
  bool same_as_replay(Branch& branch) {
    return same_bits(bits_of(branch),
                     replay(load("tinyllama", {.prefix_index = false}), branch.tokens()));
  }

  milliseconds waited{0};
  Engine engine = load("tinyllama", {.kv_tokens = 128, .prefix_index = false});
  Session session{engine};
  Random random{3};
};

TEST_F(Hold, KeepsKvThatWouldGoFirst) {
  Branch held = prefill(48);
  Branch other = prefill(48);
  held.set_priority(-5);
  other.set_priority(5);
  held.hold(milliseconds(100));
  Branch next = prefill(60);
  EXPECT_EQ(next.finish(), Finish::kRunning);
  EXPECT_EQ(computed(held), 48);
  EXPECT_EQ(computed(other), 0);
  EXPECT_TRUE(same_as_replay(held));
}

TEST_F(Hold, EndsWithItsLimit) {
  Branch held = prefill(48);
  held.hold(milliseconds(100));
  held.hold(milliseconds(50));  // the last one counts
  waited = milliseconds(49);
  Branch first = prefill(80);
  EXPECT_EQ(computed(held), 48);
  waited = milliseconds(50);
  Branch second = prefill(100);
  EXPECT_EQ(second.finish(), Finish::kRunning);
  EXPECT_EQ(computed(held), 0);
  EXPECT_TRUE(same_as_replay(held));
}

TEST_F(Hold, EndsWithRelease) {
  Branch held = prefill(48);
  held.hold(milliseconds::max());  // for ever
  Branch first = prefill(80);
  EXPECT_EQ(computed(held), 48);
  held.release();
  Branch second = prefill(100);
  EXPECT_EQ(computed(held), 0);
}

TEST_F(Hold, KeepsWhatTheBranchSharesWithItsAncestors) {
  Branch root = prefill(48);
  Branch held = root.fork();
  held.append(random.tokens(16, 256));
  test::logits_of(held);
  held.hold(milliseconds(100));
  root.set_priority(-1);
  Branch next = prefill(64);
  EXPECT_EQ(next.finish(), Finish::kRunning);
  EXPECT_EQ(computed(root), 48);
  EXPECT_EQ(computed(held), 64);
}

TEST_F(Hold, IsNotThatOfTheBranchWhichHadThePlaceBefore) {
  Branch gone = prefill(8);
  gone.hold(milliseconds(100));
  gone.prune();
  Branch branch = prefill(48);
  Branch next = prefill(100);
  EXPECT_EQ(computed(branch), 0);
}

TEST_F(Hold, IsNotInherited) {
  Branch held = prefill(48);
  held.hold(milliseconds(100));
  Branch child = held.fork();
  child.append(random.tokens(30, 256));
  test::logits_of(child);
  Branch next = prefill(70);
  EXPECT_EQ(computed(held), 48);
  EXPECT_EQ(computed(child), 48);
}

TEST_F(Hold, WhoCannotRunBesideItIsToldAndLosesNothing) {
  Branch held = prefill(80);
  held.hold(milliseconds(100));
  const Tokens tokens = random.tokens(70, 256);
  Branch refused = session.prefill(std::span(tokens));
  EXPECT_EQ(refused.finish(), Finish::kBudget);
  EXPECT_EQ(refused.tokens(), tokens);
  EXPECT_EQ(computed(held), 80);
  const std::optional<KvShortage> shortage = session.shortage();
  ASSERT_TRUE(shortage.has_value());
  EXPECT_EQ(shortage->pages_on_hold, 5);
  EXPECT_EQ(shortage->pages_of_branches, 5);
  EXPECT_EQ(shortage->pages_needed, 5);
  EXPECT_NE(shortage->message().find("5 are held by other branches (0 composed)"),
            std::string::npos);
  EXPECT_NE(shortage->message().find("release or prune branches that are on hold"),
            std::string::npos);
  held.release();
  EXPECT_EQ(session.decode(refused, greedy(4)).finish, Finish::kLength);
  EXPECT_TRUE(same_as_replay(refused));
}

TEST_F(Hold, OfAParentIsKeptFromItsOwnChildren) {
  // Without the hold the child would get the parent's pages, which it cannot use, and still not
  // fit.
  Branch held = prefill(100);
  Branch child = held.fork();
  child.append(random.tokens(60, 256));
  held.hold(milliseconds(100));
  EXPECT_EQ(session.decode(child, greedy(2)).finish, Finish::kBudget);
  EXPECT_EQ(computed(held), 100);
  EXPECT_EQ(session.shortage()->pages_on_hold, 0);  // the child has all of them itself
}

TEST_F(Hold, DoesNotKeepARunningBranchFromGivingWay) {
  Branch root = prefill(16);
  std::vector<Branch> branches = root.fork(2);
  branches[0].hold(milliseconds(100));
  // The second takes what it needs from the first, which comes back when that has ended.
  for (const Generation& out : session.decode(branches, greedy(90))) {
    EXPECT_EQ(out.finish, Finish::kLength);
  }
  EXPECT_GT(session.stats().steps, 3 * 90 / 2);
}

TEST_F(Hold, IsNotSaved) {
  TemporaryFolder folder;
  Branch held = prefill(48);
  held.hold(milliseconds(100));
  session.save(folder.path() / "held");
  held.release();
  held.prune();
  Restored restored = engine.restore(folder.path() / "held");
  ASSERT_TRUE(restored.kv_restored);
  EXPECT_EQ(computed(restored.branches[0]), 48);
  Branch next = prefill(120);
  EXPECT_EQ(next.finish(), Finish::kRunning);
  EXPECT_EQ(computed(restored.branches[0]), 0);
}

TEST_F(Hold, OfNoTimeIsAnError) {
  Branch branch = prefill(10);
  EXPECT_ERROR(branch.hold(milliseconds(0)), "hold: limit is 0 ms; expected > 0");
  EXPECT_ERROR(branch.hold(milliseconds(-3)), "hold: limit is -3 ms");
  Branch empty;
  EXPECT_ERROR(empty.hold(milliseconds(1)), "the branch is empty");
  EXPECT_ERROR(empty.release(), "the branch is empty");
}

}  // namespace
}  // namespace dendrite
