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
