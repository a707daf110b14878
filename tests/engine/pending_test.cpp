// Calls that were submitted: handles, who drives, and how they end.
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using std::chrono::milliseconds;
using test::greedy;
using test::load;
using test::Random;
using test::Tokens;

const Tokens kPrompt = Random(9).tokens(20, 256);

class PendingTest : public ::testing::Test {
 protected:
  Tokens first(std::size_t count) const {
    return {expected_.begin(), expected_.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  Engine engine_ = load("tinyllama");
  Session session_{engine_};
  Branch root_ = session_.prefill(kPrompt);
  Tokens expected_ = [this] {
    Branch branch = root_.fork();
    return session_.decode(branch, greedy(50)).ids;
  }();
};

TEST_F(PendingTest, AnEmptyHandleIsNotValid) {
  EXPECT_FALSE(PendingDecode().valid());
  EXPECT_FALSE(PendingPrefill().valid());
  EXPECT_FALSE(PendingScore().valid());
  PendingDecode call = session_.submit_decode(root_.fork(), greedy(3));
  EXPECT_TRUE(call.valid());
  const PendingDecode moved = std::move(call);
  EXPECT_FALSE(call.valid());  // NOLINT: what a move leaves is told by the header
  EXPECT_TRUE(moved.valid());
}

TEST_F(PendingTest, NothingRunsUntilSomebodyDrives) {
  PendingDecode call = session_.submit_decode(root_.fork(), greedy(3));
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_FALSE(call.done());
  EXPECT_TRUE(call.take().empty());
  EXPECT_TRUE(engine_.step());
  while (engine_.step()) {
  }
  EXPECT_TRUE(call.done());
  EXPECT_EQ(call.get().front().ids, first(3));
}

TEST_F(PendingTest, StepSaysWhenThereIsNothingToDo) {
  EXPECT_FALSE(engine_.step());
  PendingDecode call = session_.submit_decode(root_.fork(), greedy(1));
  while (engine_.step()) {
  }
  EXPECT_TRUE(call.done());
  EXPECT_FALSE(engine_.step());
}

TEST_F(PendingTest, AnyCallThatWaitsDrivesAllOthers) {
  PendingDecode call = session_.submit_decode(root_.fork(), greedy(10));
  Branch branch = root_.fork();
  session_.decode(branch, greedy(30));
  EXPECT_TRUE(call.done());
  EXPECT_EQ(call.get().front().ids, first(10));
}

TEST_F(PendingTest, AThreadThatDrivesGivesTheSameTokens) {
  EngineThread thread = engine_.start();
  std::vector<PendingDecode> calls;
  for (std::size_t i = 0; i < 5; ++i) {
    calls.push_back(
        session_.submit_decode(root_.fork(), greedy(10 * static_cast<std::int64_t>(i + 1))));
  }
  while (!calls.back().done()) std::this_thread::sleep_for(milliseconds(1));  // nobody here waits
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(calls[i].get().front().ids, first(10 * (i + 1)));
  Branch branch = root_.fork();
  EXPECT_EQ(session_.decode(branch, greedy(50)).ids, expected_);
  thread.stop();
  branch = root_.fork();
  EXPECT_EQ(session_.decode(branch, greedy(50)).ids, expected_);
}

TEST_F(PendingTest, NextGivesAllTokensInOrder) {
  PendingDecode call = session_.submit_decode(root_.fork(2), greedy(6));
  std::vector<Tokens> got(2);
  std::vector<std::string> text(2);
  while (const std::optional<StreamToken> token = call.next()) {
    got[token->index].push_back(token->token);
    text[token->index] += token->text;
  }
  EXPECT_TRUE(call.done());
  EXPECT_EQ(call.next(), std::nullopt);
  EXPECT_TRUE(call.take().empty());
  const std::vector<Generation> out = call.get();
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(got[i], first(6));
    EXPECT_EQ(out[i].ids, first(6));
    EXPECT_EQ(out[i].text, text[i]);
  }
}

TEST_F(PendingTest, TokensTellTheirStep) {
  std::vector<Branch> branches = session_.prefill(kPrompt).fork(3);
  PendingDecode call =
      session_.submit_decode(std::move(branches), {.max_tokens = 4, .ignore_eos = true});
  std::vector<std::int64_t> steps;
  while (!call.done()) {
    call.wait_for_step(std::chrono::seconds(60));
    const std::vector<StreamToken> tokens = call.take();
    EXPECT_LE(tokens.size(), 3u);  // it waits for no more than a step
    for (const StreamToken& token : tokens) steps.push_back(token.step);
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3}));
}

TEST_F(PendingTest, NextAndTakeTogetherLoseNothing) {
  PendingDecode call = session_.submit_decode(root_.fork(2), greedy(6));
  call.wait();
  std::vector<Tokens> got(2);
  const std::optional<StreamToken> token = call.next();
  ASSERT_TRUE(token.has_value());
  got[token->index].push_back(token->token);
  for (const StreamToken& more : call.take()) got[more.index].push_back(more.token);
  EXPECT_EQ(got[0], first(6));
  EXPECT_EQ(got[1], first(6));
}

TEST_F(PendingTest, ReleaseGivesTheBranchesBack) {
  PendingDecode call = session_.submit_decode(root_.fork(2), greedy(6));
  EXPECT_EQ(call.branches().size(), 2u);
  EXPECT_EQ(call.branches()[0].length(), 20);
  EXPECT_ERROR(call.branches()[0].append(Tokens{1}), "call");
  Branch fork = call.branches()[0].fork();
  call.branches()[1].prune();
  std::vector<Branch> branches = call.release();
  ASSERT_EQ(branches.size(), 2u);
  EXPECT_FALSE(branches[1].valid());
  EXPECT_EQ(branches[0].length(), 26);
  EXPECT_EQ(session_.decode(branches[0], greedy(44)).ids,
            Tokens(expected_.begin() + 6, expected_.end()));
  EXPECT_EQ(session_.decode(fork, greedy(50)).ids, expected_);
}

TEST_F(PendingTest, WaitForTimesOutAndTheCallGoesOn) {
  PendingDecode call = session_.submit_decode(root_.fork(), greedy(50));
  EXPECT_FALSE(call.wait_for(std::chrono::nanoseconds(1)));
  EXPECT_FALSE(call.done());
  EXPECT_FALSE(call.wait_until(std::chrono::steady_clock::now()));
  EXPECT_TRUE(call.wait_for(std::chrono::hours(1)));
  EXPECT_TRUE(call.wait_for(std::chrono::nanoseconds(0)));
  EXPECT_EQ(call.get().front().ids, expected_);
}

TEST_F(PendingTest, CancelEndsItWhereItIs) {
  PendingDecode call = session_.submit_decode(root_.fork(), greedy(50));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(engine_.step());
  call.cancel();
  call.cancel();
  const Generation out = call.get().front();
  EXPECT_EQ(out.finish, Finish::kCancelled);
  EXPECT_GE(out.ids.size(), 3u);
  EXPECT_LE(out.ids.size(), 4u);
  EXPECT_EQ(out.ids, first(out.ids.size()));
  Branch branch = std::move(call.release().front());
  EXPECT_EQ(branch.finish(), Finish::kCancelled);
  const auto drawn = static_cast<std::int64_t>(out.ids.size());
  EXPECT_EQ(branch.length(), 20 + drawn);
  EXPECT_EQ(session_.decode(branch, greedy(50 - drawn)).ids,
            Tokens(expected_.begin() + drawn, expected_.end()));
}

TEST_F(PendingTest, CancelAfterTheEndChangesNothing) {
  PendingDecode call = session_.submit_decode(root_.fork(), greedy(3));
  call.wait();
  call.cancel();
  EXPECT_EQ(call.get().front().finish, Finish::kLength);
}

TEST_F(PendingTest, ACancelledPrefillHoldsItsTokens) {
  const Tokens prompt = Random(10).tokens(100, 256);
  PendingPrefill call = session_.submit_prefill(prompt);
  call.cancel();
  Branch branch = call.get();
  EXPECT_EQ(branch.finish(), Finish::kCancelled);
  EXPECT_EQ(branch.tokens(), prompt);
  EXPECT_EQ(session_.decode(branch, greedy(3)).ids.size(), 3u);
}

TEST_F(PendingTest, BranchesOfAnEndedCallGoWithItsHandle) {
  const auto drop_when_done = [this](Pending call) {
    const auto at_both = std::make_shared<std::barrier<>>(2);
    call.on_done([at_both] {  // whoever drives knows the call until this returns
      at_both->arrive_and_wait();
      at_both->arrive_and_wait();
    });
    const EngineThread thread = engine_.start();
    at_both->arrive_and_wait();
    { const Pending gone = std::move(call); }
    EXPECT_EQ(session_.stats().branches_live, 1);
    at_both->arrive_and_wait();
  };
  drop_when_done(session_.submit_prefill(Random(10).tokens(100, 256)));
  drop_when_done(session_.submit_decode(root_.fork(), greedy(3)));
  drop_when_done(session_.submit_compose(std::vector<Piece>{Piece::span(root_, 2, 20)}));
  drop_when_done(session_.submit_register_chunk(std::span(kPrompt)));
}

TEST_F(PendingTest, ACancelledScoreHasNone) {
  PendingScore call = session_.submit_score_tokens(std::span(&root_, 1), {{1, 2}, {3}});
  call.cancel();
  const std::vector<std::vector<Score>> scores = call.get();
  ASSERT_EQ(scores.size(), 1u);
  EXPECT_TRUE(scores[0][0].tokens.empty());
  EXPECT_TRUE(std::isnan(scores[0][1].logprob));
}

TEST_F(PendingTest, AnotherThreadMayCancelWhatOneWaitsFor) {
  for (int i = 0; i < test::scaled(20); ++i) {
    DecodeParams params = greedy(1000000);
    PendingDecode call = session_.submit_decode(root_.fork(), params);
    std::thread other([&] { call.cancel(); });
    const Generation out = call.get().front();
    other.join();
    EXPECT_EQ(out.finish, Finish::kCancelled);
    const std::size_t known = std::min(out.ids.size(), expected_.size());
    EXPECT_EQ(Tokens(out.ids.begin(), out.ids.begin() + static_cast<std::ptrdiff_t>(known)),
              first(known));
  }
}

TEST_F(PendingTest, OnDoneIsCalledOnce) {
  int called = 0;
  PendingDecode call = session_.submit_decode(root_.fork(), greedy(3));
  call.on_done([&] { ++called; });
  EXPECT_EQ(called, 0);
  call.wait();
  EXPECT_EQ(called, 1);
  call.on_done([&] { called += 10; });  // at once
  EXPECT_EQ(called, 11);
  call.get();
  while (engine_.step()) {
  }
  EXPECT_EQ(called, 11);
}

TEST_F(PendingTest, OnDoneKeepsTheLastCallback) {
  int earlier = 0;
  int last = 0;
  PendingDecode call = session_.submit_decode(root_.fork(), greedy(3));
  call.on_done([&] { ++earlier; });
  call.on_done([&] { ++last; });
  call.wait();
  EXPECT_EQ(earlier, 0);
  EXPECT_EQ(last, 1);
}

TEST_F(PendingTest, OnDoneIsNotCalledForADroppedHandle) {
  int called = 0;
  for (const int steps : {0, 2}) {
    PendingDecode call = session_.submit_decode(root_.fork(), greedy(3));
    call.on_done([&] { ++called; });
    for (int i = 0; i < steps; ++i) EXPECT_TRUE(engine_.step());
  }
  while (engine_.step()) {
  }
  EXPECT_EQ(called, 0);
}

TEST_F(PendingTest, OnDoneIsCalledForWhatIsCancelledToo) {
  int called = 0;
  PendingDecode call = session_.submit_decode(root_.fork(), greedy(3));
  call.on_done([&] { ++called; });
  call.cancel();
  call.wait();
  EXPECT_EQ(called, 1);
}

TEST_F(PendingTest, OnDoneMaySubmitTheNextCall) {
  PendingDecode next;
  PendingDecode call = session_.submit_decode(root_.fork(), greedy(3));
  call.on_done([&] { next = session_.submit_decode(root_.fork(), greedy(5)); });
  call.wait();
  EXPECT_EQ(next.get().front().ids, first(5));
}

TEST_F(PendingTest, OnDoneMayTakeWhatCameOfTheCall) {
  PendingDecode next;
  PendingPrefill call = session_.submit_prefill(kPrompt);
  call.on_done([&] {
    EXPECT_TRUE(call.wait_for(milliseconds(0)));
    next = session_.submit_decode(call.get(), greedy(5));
  });
  call.wait();
  ASSERT_TRUE(next.valid());
  EXPECT_EQ(next.get().front().ids, first(5));
  PendingDecode running = session_.submit_decode(root_.fork(), greedy(5));
  bool refused = false;
  call = session_.submit_prefill(kPrompt);
  call.on_done([&] {
    try {
      running.get();
    } catch (const BranchBusy&) {
      refused = true;
    }
  });
  call.wait();
  EXPECT_TRUE(refused);
  EXPECT_EQ(running.get().front().ids, first(5));
}

TEST_F(PendingTest, WhatAListenerHoldsMayGoWithIt) {
  PendingDecode call = session_.submit_decode(root_.fork(), greedy(3));
  auto other = std::make_shared<PendingDecode>(session_.submit_decode(root_.fork(), greedy(3)));
  call.on_done([held = std::move(other)] {});
  call = {};
  EXPECT_FALSE(engine_.step());
  EXPECT_EQ(session_.stats().branches_live, 1);
}

TEST_F(PendingTest, AResultIsTakenOnce) {
  const char* const kTaken = "get: the result was taken already";
  PendingDecode decode = session_.submit_decode(root_.fork(), greedy(3));
  PendingScore score = session_.submit_score_tokens(std::span(&root_, 1), {{1, 2}});
  PendingPrefill prefill = session_.submit_prefill(kPrompt);
  EXPECT_EQ(decode.get().front().ids, first(3));
  EXPECT_ERROR(decode.get(), kTaken);
  EXPECT_EQ(score.get().size(), 1u);
  EXPECT_ERROR(score.get(), kTaken);
  EXPECT_EQ(prefill.get().length(), 20);
  EXPECT_ERROR(prefill.get(), kTaken);
  EXPECT_EQ(decode.release().front().length(), 23);  // these are apart from it
  EXPECT_EQ(decode.take().size(), 3u);
}

TEST_F(PendingTest, NextThrowsWhatTheCallFailedWithAfterItsTokens) {
  DecodeParams params = greedy(10);
  params.on_token = [heard = 0](const TokenEvent&) mutable {
    if (++heard == 2) throw std::runtime_error("enough");
  };
  PendingDecode call = session_.submit_decode(root_.fork(), params);
  EXPECT_EQ(call.next().value().token, expected_[0]);
  EXPECT_EQ(call.next().value().token, expected_[1]);
  EXPECT_THROW(call.next(), std::runtime_error);
  EXPECT_THROW(call.get(), std::runtime_error);
}

TEST_F(PendingTest, MistakesAreThrownWhereTheyAreMade) {
  EXPECT_ERROR(session_.submit_prefill(Tokens{}), "prompt");
  EXPECT_ERROR(session_.submit_decode(root_.fork(), {.temperature = -1.0}), "temperature");
  EXPECT_ERROR(session_.submit_score_tokens(std::span(&root_, 1), {{}}), "continuation");
  EXPECT_FALSE(engine_.step());
}

TEST(Pending, AHandleOutlivesSessionEngineAndBranches) {
  PendingDecode decode;
  PendingPrefill prefill;
  PendingScore score;
  Tokens expected;
  {
    Session session(load("tinyllama"));
    Branch root = session.prefill(kPrompt);
    Branch branch = root.fork();
    expected = session.decode(branch, greedy(8)).ids;
    decode = session.submit_decode(root.fork(), greedy(8));
    prefill = session.submit_prefill(kPrompt);
    score = session.submit_score_tokens(std::span(&root, 1), {{1, 2}});
  }
  EXPECT_EQ(decode.get().front().ids, expected);
  EXPECT_EQ(prefill.get().length(), 20);
  (void)score.get();  // its branch was dropped: with scores or without, it ends
}

TEST(Pending, DroppingHandlesFreesAllPages) {
  const Engine engine = load("tinyllama");
  for (const int steps : {0, 1, 3}) {
    SCOPED_TRACE(steps);
    Session session(engine);
    {
      Branch root = session.prefill(kPrompt);
      PendingDecode decode = session.submit_decode(root.fork(3), greedy(50));
      PendingPrefill prefill = session.submit_prefill(Random(11).tokens(200, 256));
      PendingScore score = session.submit_score_tokens(std::span(&root, 1), {{1, 2}, {3, 4, 5}});
      for (int i = 0; i < steps; ++i) EXPECT_TRUE(engine.step());
    }
    while (engine.step()) {
    }
    EXPECT_EQ(session.stats().branches_live, 0);
    test::expect_all_pages_free(engine);
  }
}

TEST(Pending, ADroppedCallDisturbsNobody) {
  const Engine engine = load("tinyllama", {.prefix_index = false});
  Session session(engine);
  Branch root = session.prefill(kPrompt);
  Branch branch = root.fork();
  const Tokens expected = session.decode(branch, greedy(20)).ids;
  std::vector<PendingDecode> calls;
  for (int i = 0; i < 6; ++i) calls.push_back(session.submit_decode(root.fork(), greedy(20)));
  for (std::size_t step = 0; step < 6; ++step) {
    ASSERT_TRUE(engine.step());
    if (step % 2 == 0) calls[step] = {};
  }
  for (std::size_t i = 1; i < 6; i += 2) EXPECT_EQ(calls[i].get().front().ids, expected);
}

}  // namespace
}  // namespace dendrite
