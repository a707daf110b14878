// Callbacks of calls that share steps: where they run, what they may do and what they may not.
#include <gtest/gtest.h>

#include <latch>
#include <semaphore>
#include <stdexcept>
#include <thread>

#include "support/engine_support.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::Random;
using test::Tokens;

const Tokens kPrompt = Random(8).tokens(20, 256);

/// An engine, and what its prompt decodes to.
struct Place {
  Engine engine = load("tinyllama");
  Session session{engine};
  Branch root = session.prefill(kPrompt);
  Tokens expected = [this] {
    Branch branch = root.fork();
    return session.decode(branch, greedy(40)).ids;
  }();
  Tokens first(std::size_t count) const {
    return {expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(count)};
  }
};

TEST(JoiningCallbacks, RunInTheThreadOfTheirCallAtOnce) {
  Place place;
  std::atomic<int> elsewhere = 0;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Branch mine = place.root.fork();
      DecodeParams params = greedy(40);
      params.on_token = [&, thread = std::this_thread::get_id()](const TokenEvent&) {
        if (std::this_thread::get_id() != thread) ++elsewhere;
      };
      params.enough = [&, thread = std::this_thread::get_id()](std::size_t, const Generation&) {
        if (std::this_thread::get_id() != thread) ++elsewhere;
        return false;
      };
      if (place.session.decode(mine, params).ids != place.expected) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(wrong, 0);
}

TEST(JoiningCallbacks, OfSubmittedCallsRunInTheThreadThatDrives) {
  Place place;
  std::vector<std::thread::id> heard;
  DecodeParams params = greedy(3);
  params.on_token = [&](const TokenEvent&) { heard.push_back(std::this_thread::get_id()); };
  PendingDecode call = place.session.submit_decode(place.root.fork(), params);
  EXPECT_TRUE(heard.empty());
  call.wait();
  EXPECT_EQ(heard, std::vector(3, std::this_thread::get_id()));
}

/// A thread that was in another callback when they became due has not to call them as well.
TEST(JoiningCallbacks, OfASubmittedCallRunInOneThreadAtATime) {
  Place place;
  core_of(place.engine)->step_rows = 8;  // the longer prompt takes several turns
  Branch longer = place.root.fork();
  longer.append(Random(3).tokens(60, 256));
  std::binary_semaphore told(0);
  std::binary_semaphore stepped(0);
  std::thread other;
  DecodeParams of_first = greedy(1);
  of_first.on_token = [&](const TokenEvent&) {
    other = std::thread([&] {
      while (place.engine.step()) {
      }
    });
    EXPECT_TRUE(told.try_acquire_for(std::chrono::seconds(20)));
  };
  PendingDecode second;
  bool ended_meanwhile = false;
  DecodeParams of_second = greedy(1);
  of_second.on_token = [&](const TokenEvent&) {
    told.release();
    EXPECT_TRUE(stepped.try_acquire_for(std::chrono::seconds(20)));
    ended_meanwhile = second.done();
  };
  PendingDecode first = place.session.submit_decode(place.root.fork(), of_first);
  second = place.session.submit_decode(std::move(longer), of_second);
  EXPECT_TRUE(place.engine.step());
  stepped.release();
  other.join();
  EXPECT_FALSE(ended_meanwhile);
  EXPECT_EQ(second.get().front().ids.size(), 1u);
}

/// Whether the callback's own thread drove before or not.
TEST(JoiningCallbacks, ThatTakeLongHoldUpNobody) {
  Place place;
  for (int round = 0; round < test::scaled(20); ++round) {
    std::binary_semaphore over(0);
    std::latch begun(2);
    std::atomic<bool> held_up = false;
    std::thread other([&] {
      Branch branch = place.root.fork();
      begun.arrive_and_wait();
      place.session.decode(branch, greedy(60));
      over.release();
    });
    Branch branch = place.root.fork();
    int told = 0;
    DecodeParams params = greedy(20);
    params.on_token = [&](const TokenEvent&) {
      if (++told == 10) held_up = !over.try_acquire_for(std::chrono::seconds(20));
    };
    begun.arrive_and_wait();
    EXPECT_EQ(place.session.decode(branch, params).ids, place.first(20));
    other.join();
    ASSERT_FALSE(held_up) << "in round " << round;
  }
}

TEST(JoiningCallbacks, MayForkPruneAppendAndSubmit) {
  Place place;
  std::vector<Branch> branches = place.root.fork(3);
  Branch other = place.root.fork();
  std::vector<Branch> forks;
  PendingDecode submitted;
  DecodeParams params = greedy(10);
  params.on_token = [&](const TokenEvent& event) {
    if (event.index != 0) return;
    const std::int64_t told = branches[0].length() - 20;
    if (told == 2) forks.push_back(branches[0].fork());
    if (told == 3) other.append(Tokens{1, 2});
    if (told == 4) submitted = place.session.submit_decode(place.root.fork(), greedy(6));
    if (told == 5) branches[2].prune();
    if (told == 6) other.prune();
  };
  const std::vector<Generation> out = place.session.decode(branches, params);
  EXPECT_EQ(out[0].ids, place.first(10));
  EXPECT_EQ(out[1].ids, place.first(10));
  EXPECT_EQ(out[2].finish, Finish::kCancelled);
  EXPECT_GE(out[2].ids.size(), 4u);
  // (Where steps begin early, the fork costs its parent one: the others are a token ahead then.)
  EXPECT_LE(out[2].ids.size(), 6u);
  EXPECT_EQ(out[2].ids, place.first(out[2].ids.size()));
  EXPECT_FALSE(branches[2].valid());
  ASSERT_EQ(forks.size(), 1u);
  EXPECT_EQ(forks[0].length(), 22);
  EXPECT_EQ(place.session.decode(forks[0], greedy(38)).ids,
            Tokens(place.expected.begin() + 2, place.expected.end()));
  EXPECT_EQ(submitted.get().front().ids, place.first(6));
}

TEST(JoiningCallbacks, MayPruneTheOnlyBranchOfTheirCall) {
  Place place;
  Branch branch = place.root.fork();
  DecodeParams params = greedy(10);
  params.on_token = [&](const TokenEvent&) { branch.prune(); };
  const Generation out = place.session.decode(branch, params);
  EXPECT_EQ(out.finish, Finish::kCancelled);
  EXPECT_EQ(out.ids, place.first(1));
  EXPECT_FALSE(branch.valid());
}

TEST(JoiningCallbacks, MustNotWait) {
  const TemporaryFolder folder;
  Place place;
  Branch branch = place.root.fork();
  Branch other = place.root.fork();
  other.append(Tokens{5});
  PendingDecode pending = place.session.submit_decode(place.root.fork(), greedy(3));
  DecodeParams params = greedy(2);
  int told = 0;
  params.on_token = [&](const TokenEvent&) {
    if (++told > 1) return;
    Session& session = place.session;
    const std::span<Branch> others(&other, 1);
    EXPECT_ERROR(session.prefill(kPrompt), "called from a callback");
    EXPECT_ERROR(session.decode(other, greedy(1)), "called from a callback");
    EXPECT_ERROR(session.decode_step(other), "called from a callback");
    EXPECT_ERROR(session.score_tokens(others, {{1}}), "called from a callback");
    EXPECT_ERROR(other.score_tokens({{1}}), "called from a callback");
    EXPECT_ERROR(session.next_tokens(others, {.top = 1}), "called from a callback");
    EXPECT_ERROR(session.expand(others, {.top = 1}), "called from a callback");
    EXPECT_ERROR(session.save(folder.path() / "file"), "called from a callback");
    EXPECT_ERROR(place.engine.step(), "called from a callback");
    EXPECT_ERROR(pending.wait(), "called from a callback");
    EXPECT_ERROR(pending.get(), "called from a callback");
    EXPECT_ERROR(pending.wait_for(std::chrono::milliseconds(1)), "called from a callback");
  };
  EXPECT_EQ(place.session.decode(branch, params).ids, place.first(2));
  EXPECT_EQ(told, 2);
  EXPECT_EQ(pending.get().front().ids, place.first(3));
  EXPECT_EQ(other.length(), 21);
}

TEST(JoiningCallbacks, BranchesOfACallCannotBeChanged) {
  Place place;
  Branch branch = place.root.fork();
  DecodeParams params = greedy(2);
  params.on_token = [&](const TokenEvent&) { EXPECT_ERROR(branch.append(Tokens{1}), "call"); };
  EXPECT_EQ(place.session.decode(branch, params).ids, place.first(2));
}

TEST(JoiningCallbacks, WhatTheyThrowEndsTheirCallAlone) {
  Place place;
  PendingDecode other = place.session.submit_decode(place.root.fork(), greedy(40));
  Branch branch = place.root.fork();
  DecodeParams params = greedy(40);
  int told = 0;
  params.on_token = [&](const TokenEvent&) {
    if (++told == 5) throw std::runtime_error("enough of it");
  };
  try {
    place.session.decode(branch, params);
    ADD_FAILURE() << "nothing came to the caller";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "enough of it");
  }
  EXPECT_EQ(told, 5);
  EXPECT_EQ(other.get().front().ids, place.expected);
  // It goes on from where it was.
  const std::int64_t drawn = branch.length() - 20;
  EXPECT_GE(drawn, 5);
  EXPECT_EQ(place.session.decode(branch, greedy(40 - drawn)).ids,
            Tokens(place.expected.begin() + drawn, place.expected.end()));
}

TEST(JoiningCallbacks, WhatThoseOfASubmittedCallThrowComesToWhoAsks) {
  Place place;
  DecodeParams params = greedy(40);
  params.on_token = [](const TokenEvent&) { throw std::runtime_error("enough of it"); };
  PendingDecode call = place.session.submit_decode(place.root.fork(), params);
  Branch branch = place.root.fork();
  EXPECT_EQ(place.session.decode(branch, greedy(40)).ids, place.expected);  // drives the other, too
  EXPECT_TRUE(call.done());
  EXPECT_THROW(call.get(), std::runtime_error);
  EXPECT_EQ(call.release().front().length(), 21);
}

}  // namespace
}  // namespace dendrite
