// SessionOptions::poll: who hears it, when, and what it ends.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;
using test::greedy;
using test::Random;
using test::Tokens;

const Tokens kPrompt = Random(8).tokens(20, 256);

struct Interrupt : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A session that hears of polls.
struct Poll : ::testing::Test {
  Engine engine = test::load("tinyllama");
  std::function<bool()> on_poll = [] { return true; };
  int polls = 0;
  std::thread::id elsewhere{};
  Session session{engine, {.poll = [this, me = std::this_thread::get_id()] {
                    if (std::this_thread::get_id() != me) elsewhere = std::this_thread::get_id();
                    ++polls;
                    return on_poll();
                  }}};

  Branch start() { return session.prefill(kPrompt); }
  ~Poll() override {
    EXPECT_EQ(elsewhere, std::thread::id());
    test::expect_all_pages_free(engine);
  }
};

TEST_F(Poll, FalseEndsTheCallBetweenTwoSteps) {
  Branch branch = start();
  const auto begin = steady_clock::now();
  on_poll = [this] { return polls < 4; };
  const Generation out = session.decode(branch, greedy(16000));
  EXPECT_EQ(out.finish, Finish::kCancelled);
  EXPECT_EQ(polls, 4);
  EXPECT_GE(steady_clock::now() - begin, 100ms);
  EXPECT_EQ(branch.length(), std::ssize(kPrompt) + std::ssize(out.ids));
}

TEST_F(Poll, FalseEndsAPrompt) {
  on_poll = [] { return false; };  // at the first time: a GPU has all of it before the second
  const Branch branch = session.prefill(Random(3).tokens(12000, 256));
  EXPECT_EQ(branch.finish(), Finish::kCancelled);
  EXPECT_LT(session.stats().tokens_computed, 12000);
  EXPECT_EQ(polls, 1);
}

TEST_F(Poll, WhatItThrowsComesOutOfAnyCall) {
  std::vector<Branch> branches;
  branches.push_back(start());
  std::this_thread::sleep_for(50ms);
  on_poll = []() -> bool { throw Interrupt("poll"); };
  EXPECT_THROW(session.decode(branches, greedy(10)), Interrupt);
  EXPECT_EQ(branches[0].finish(), Finish::kCancelled);
  std::this_thread::sleep_for(50ms);
  EXPECT_THROW(session.score_tokens(branches, {{1, 2}}), Interrupt);
  std::this_thread::sleep_for(50ms);
  EXPECT_THROW(session.prefill(Random(4).tokens(40, 256)), Interrupt);
  std::this_thread::sleep_for(50ms);
  EXPECT_THROW(session.next_tokens(branches, {.top = 1}), Interrupt);
  EXPECT_EQ(session.stats().branches_live, 1);
  on_poll = [] { return true; };
  EXPECT_EQ(session.decode(branches, greedy(10)).front().ids.size(), 10u);
}

/// Once per period in a thread, not once a call. A handle's wait is none.
TEST_F(Poll, ShortCallsDoNotPollMoreOften) {
  const auto begin = steady_clock::now();
  Branch branch = start();
  for (int i = 0; i < 200; ++i) session.decode(branch, greedy(1));
  EXPECT_LE(polls, 1 + (steady_clock::now() - begin) / 50ms);
  EXPECT_GE(polls, 1);
  std::this_thread::sleep_for(50ms);
  polls = 0;
  session.submit_decode(branch.fork(), greedy(3)).get();
  EXPECT_EQ(polls, 0);
}

TEST_F(Poll, MustNotWait) {
  Branch branch = start();
  std::this_thread::sleep_for(50ms);
  Branch fork;
  on_poll = [&] {
    EXPECT_THROW(session.decode_step(branch), BranchBusy);
    EXPECT_THROW(branch.append(Tokens{1}), BranchBusy);
    fork = branch.fork();
    return true;
  };
  EXPECT_EQ(session.decode(branch, greedy(3)).ids.size(), 3u);
  EXPECT_EQ(fork.length(), std::ssize(kPrompt));
}

/// Another thread drives, in the first poll and after it; a step that takes long is no obstacle.
TEST_F(Poll, IsHeardWhileAnotherThreadIsInAStep) {
  std::atomic<bool> in_a_step = false;
  std::atomic<bool> heard = false;
  Branch branch = start();
  std::this_thread::sleep_for(50ms);
  polls = 0;
  const auto until = [](const std::atomic<bool>& flag) {
    for (int i = 0; i < 20000 && !flag; ++i) std::this_thread::sleep_for(1ms);
    return flag.load();
  };
  on_poll = [&] {
    if (polls == 1) {
      EXPECT_TRUE(until(in_a_step));
    }
    if (polls == 2) heard = true;
    return true;
  };
  const EventSubscription reader = engine.on_event(mask_of(EventKind::kStep), [&](const Event&) {
    if (in_a_step.exchange(true)) return;
    EXPECT_TRUE(until(heard));
  });
  const EngineThread driver = engine.start();
  EXPECT_EQ(session.decode(branch, greedy(3)).ids.size(), 3u);
  EXPECT_TRUE(heard);
}

/// Threads wait, drive and are interrupted in any order; who was not is not disturbed.
TEST_F(Poll, OfManyThreadsAtOnce) {
  Session plain(engine);
  Branch parent = plain.prefill(kPrompt);
  Branch first = parent.fork();
  const Tokens expected = plain.decode(first, greedy(30)).ids;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Session mine(engine, {.poll = [t] { return t == 0 ? throw Interrupt("poll") : t != 1; }});
      for (int round = 0; round < test::scaled(10); ++round) {
        Branch branch = parent.fork();
        try {
          Branch other = mine.prefill(kPrompt);
          const Generation out = mine.decode(other, greedy(30));
          if (out.ids != Tokens(expected.begin(), expected.begin() + std::ssize(out.ids))) ++wrong;
          if (t > 1 && out.ids != expected) ++wrong;
        } catch (const Interrupt&) {
          if (t != 0) ++wrong;
        }
        if (plain.decode(branch, greedy(30)).ids != expected) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace dendrite
