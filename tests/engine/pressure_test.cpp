// A pool that runs full, level by level: what is only remembered goes; idle branches give way,
// which is told first; what does not fit alone gets a status with advice.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::Random;

class FullPool : public ::testing::Test {
 protected:
  Branch prompt(std::uint32_t seed, std::int64_t tokens) {
    return session_.prefill(Random(seed).tokens(tokens, 256));
  }

  const Engine engine_ = load("tinyllama", {.page_tokens = 16, .kv_tokens = 128});
  Session session_{engine_};
  std::vector<EventKind> heard_;
  dendrite::Pressure level_ = dendrite::Pressure::kReject;
  EventSubscription subscription_ = engine_.on_event(
      mask_of(EventKind::kForget, EventKind::kPressure, EventKind::kEvict, EventKind::kNoRoom),
      [this](const Event& event) {
        heard_.push_back(event.kind);
        if (event.kind == EventKind::kPressure) level_ = event.level;
      });
};

TEST_F(FullPool, FirstForgetsWhatNobodyHolds) {
  prompt(1, 96).prune();  // remembered
  const Branch second = prompt(2, 96);
  EXPECT_EQ(second.finish(), Finish::kRunning);
  EXPECT_EQ(heard_, (std::vector{EventKind::kPressure, EventKind::kForget}));
  EXPECT_EQ(level_, Pressure::kSoft);
}

TEST_F(FullPool, ThenTellsBeforeIdleBranchesGiveWay) {
  const Branch first = prompt(1, 96);
  const Branch second = prompt(2, 96);
  ASSERT_FALSE(heard_.empty());
  EXPECT_EQ(std::ranges::count(heard_, EventKind::kPressure), 1);
  EXPECT_EQ(std::ranges::count(heard_, EventKind::kEvict), 1);
  EXPECT_LT(std::ranges::find(heard_, EventKind::kPressure),
            std::ranges::find(heard_, EventKind::kEvict));
  EXPECT_EQ(std::ranges::count(heard_, EventKind::kNoRoom), 0);
  EXPECT_EQ(first.length(), 96);  // nothing that is held is lost
}

TEST_F(FullPool, AtLastRefusesWithAdvice) {
  Branch branch = prompt(1, 96);
  EXPECT_EQ(session_.decode(branch, greedy(64)).finish, Finish::kBudget);
  EXPECT_EQ(std::ranges::count(heard_, EventKind::kNoRoom), 1);
  const std::optional<KvShortage> shortage = session_.shortage();
  ASSERT_TRUE(shortage);
  EXPECT_GT(shortage->kv_tokens_needed(), 128);
  EXPECT_NE(shortage->message().find("kv_tokens"), std::string::npos) << shortage->message();
  EXPECT_EQ(branch.length(), 129);           // all that fit, and the token drawn of them
  EXPECT_EQ(engine_.stats().pool_pages, 8);  // it does not grow
  EXPECT_THROW(prompt(2, 200), Error);       // what never fits is said at once
}

}  // namespace
}  // namespace dendrite
