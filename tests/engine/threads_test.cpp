// Several threads on one engine: calls take turns, handles are theirs alone, results do not change.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::Random;
using test::Tokens;

TEST(Threads, ForkDropAppendAndDecodeAtOnce) {
  const Engine e = load("tinyllama", {.threads = 2});
  const Tokens prompt = Random(1).tokens(60, 256);
  Tokens expected;
  Tokens expected_short;
  {
    Session session(e);
    Branch branch = session.prefill(std::span(prompt));
    expected = session.decode(branch, greedy(12)).ids;
    Branch back = branch.at(40);
    expected_short = session.decode(back, greedy(12)).ids;
  }
  Session session(e);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> seeds = root.fork(4);
  std::atomic<int> wrong = 0;
  const int rounds = test::scaled(40);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<std::uint32_t>(t));
      Branch mine = std::move(seeds[static_cast<std::size_t>(t)]);
      for (int i = 0; i < rounds; ++i) {
        switch (random.below(5)) {
          case 0: {
            std::vector<Branch> kids = mine.fork(3);
            for (const Generation& out : session.decode(kids, greedy(12))) {
              if (out.ids != expected) ++wrong;
            }
            break;
          }
          case 1: {
            Branch back = mine.at(40);
            if (session.decode(back, greedy(12)).ids != expected_short) ++wrong;
            break;
          }
          case 2: {
            std::vector<Branch> many = mine.fork(50);
            for (std::size_t k = 0; k < many.size(); k += 2) many[k].prune();
            for (Branch& branch : many) {
              if (branch.valid()) branch.append(random.tokens(3, 256));
            }
            session.prune(many);
            break;
          }
          case 3: {
            Branch other = session.prefill(std::span(prompt));
            if (other.tokens() != prompt) ++wrong;
            if (session.decode(other, greedy(12)).ids != expected) ++wrong;
            break;
          }
          default: {
            const Stats stats = session.stats();
            if (stats.pages_used <= 0 || mine.length() != 60) ++wrong;
            if (std::isnan(mine.score_tokens({{1, 2, 3}})[0].logprob)) ++wrong;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(session.stats().branches_live, 1);
  EXPECT_TRUE(test::tree_is_sound(e, {std::span(&root, 1)}));
  root.prune();
  test::expect_all_pages_free(e);
}

/// Everything that may be called from several threads, at once, on a pool that is nearly always
/// full: remembered prompts and idle branches lose their pages all the time.
TEST(Threads, EverythingAtOnceOnASmallPool) {
  const Engine e = load("tinyllama", {.threads = 2, .page_tokens = 8, .kv_tokens = 8 * 10});
  const Tokens prompt = Random(1).tokens(30, 256);
  Tokens expected;
  {
    Session session(e);
    Branch branch = session.prefill(std::span(prompt));
    expected = session.decode(branch, greedy(8)).ids;
  }
  Session shared(e);
  Branch root = shared.prefill(std::span(prompt));
  std::vector<Branch> seeds = root.fork(6);
  std::atomic<int> wrong = 0;
  std::atomic<std::int64_t> heard = 0;
  const int rounds = test::scaled(30);
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<std::uint32_t>(t));
      Branch mine = std::move(seeds[static_cast<std::size_t>(t)]);
      EventSubscription subscription;
      const Tokens own_prompt = Random(100 + static_cast<std::uint32_t>(t)).tokens(24, 256);
      Branch idle = shared.prefill(std::span(own_prompt));  // three pages that others will want
      Tokens idle_expected;
      for (int i = 0; i < rounds; ++i) {
        switch (random.below(10)) {
          case 9: {
            Branch used = idle.fork();
            const Tokens ids = shared.decode(used, greedy(4)).ids;
            if (idle_expected.empty()) idle_expected = ids;
            if (ids.empty() || ids != idle_expected) ++wrong;
            break;
          }
          case 0:
            if (shared.decode(mine, greedy(8)).ids != expected) ++wrong;
            mine = mine.at(30);
            break;
          case 1: {
            std::vector<Branch> kids = mine.fork(3);
            kids[1].set_priority(1);
            for (const Generation& out : shared.decode(kids, greedy(8))) {
              if (out.ids != expected) ++wrong;
            }
            break;
          }
          case 2: {
            std::vector<Branch> many = mine.fork(40);
            for (Branch& branch : many) {
              if (random.one_in(2)) branch.append(random.tokens(3, 256));
              if (random.one_in(3)) branch.prune();
            }
            break;
          }
          case 3: {
            Branch back = mine.at(random.in(1, 30));
            shared.decode(back, {.max_tokens = 3, .temperature = 1.0, .ignore_eos = true});
            break;
          }
          case 4: {
            Session own(e, {.seed = static_cast<std::uint64_t>(i), .budget = {.tokens = 40}});
            Branch other = own.prefill(std::span(prompt));
            own.decode(other, greedy(20));
            break;
          }
          case 5:
            subscription = e.on_event(kAllEvents, [&heard](const Event&) { ++heard; });
            break;
          case 6:
            subscription.off();
            break;
          case 7:
            if (std::isnan(mine.score_tokens({{1, 2, 3}, {1, 2, 4}})[0].logprob)) ++wrong;
            break;
          default: {
            const EngineStats stats = e.stats();
            if (stats.pages_used + stats.pages_free != stats.pool_pages) ++wrong;
            if (stats.sessions < 1 || shared.stats().branches_live < 1) ++wrong;
            const BranchStats of_mine = mine.stats();
            if (of_mine.own_pages + of_mine.shared_pages != of_mine.pages) ++wrong;
            if (to_prometheus(stats).empty()) ++wrong;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(heard, 0);
  EXPECT_GT(e.stats().evictions, 0);
  EXPECT_EQ(e.stats().branches_live, 1);
  EXPECT_EQ(e.stats().sessions, 1);
  EXPECT_TRUE(test::tree_is_sound(e, {std::span(&root, 1)}));
  root.prune();
  test::expect_all_pages_free(e);
}

TEST(Threads, SessionsOfOneEngineDoNotTouchEachOther) {
  const Engine e = load("qwen3_swa", {.threads = 2});
  std::vector<Tokens> expected;
  for (std::uint32_t t = 0; t < 3; ++t) {
    Session session(e, {.seed = t});
    const Tokens prompt = Random(t).tokens(30, 256);
    Branch branch = session.prefill(std::span(prompt), {.stream = t});
    expected.push_back(
        session.decode(branch, {.max_tokens = 40, .temperature = 1.0, .ignore_eos = true}).ids);
  }
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) {
        Session session(e, {.seed = t});
        const Tokens prompt = Random(t).tokens(30, 256);
        Branch branch = session.prefill(std::span(prompt), {.stream = t});
        const DecodeParams params{.max_tokens = 40, .temperature = 1.0, .ignore_eos = true};
        if (session.decode(branch, params).ids != expected[t]) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  test::expect_all_pages_free(e);
}

TEST(Threads, ABranchOutlivesItsSessionAndEngineHandles) {
  Branch branch;
  {
    Session session(load("tinyllama"));
    const Tokens prompt = Random(1).tokens(20, 256);
    branch = session.prefill(std::span(prompt));
  }
  EXPECT_EQ(branch.length(), 20);
  EXPECT_EQ(branch.score_tokens({{1, 2}})[0].tokens.size(), 2u);
  Branch other = branch.fork();
  branch.prune();
  EXPECT_EQ(other.length(), 20);
}

}  // namespace
}  // namespace dendrite
