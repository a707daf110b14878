// A turn takes the tree's lock once for each of its parts, however many calls and branches are in
// it: forks of other threads wait for that lock.
#include <gtest/gtest.h>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::load;
using test::load_sampling;
using test::Random;

std::uint64_t taken(const Engine& engine) {
  const TreeLock lock(core_of(engine)->tree_mutex);
  return core_of(engine)->tree_mutex.taken();
}

/// Locks of `turns` turns in which all of the branches run, each in a call of its own.
double locks_a_turn(const Engine& engine, std::size_t calls) {
  constexpr std::int64_t kTurns = 8;
  Session session(engine, {.seed = 3});
  Branch root = session.prefill(Random(4).tokens(40, 256));
  std::vector<Branch> branches = root.fork(static_cast<int>(calls));
  const DecodeParams params{.max_tokens = 64, .temperature = 1.0, .ignore_eos = true};
  std::vector<PendingDecode> pending;
  for (Branch& branch : branches) {
    pending.push_back(session.submit_decode(std::span(&branch, 1), params));
  }
  while (session.stats().tokens_generated < 4 * static_cast<std::int64_t>(calls)) engine.step();
  const std::uint64_t before = taken(engine);
  for (std::int64_t i = 0; i < kTurns; ++i) engine.step();
  return static_cast<double>(taken(engine) - before - 1) / kTurns;
}

TEST(TurnLocks, AreNoMoreForManyCalls) {
  for (const std::size_t calls : {1, 7, 40}) {
    EXPECT_LE(locks_a_turn(load("tinyllama", {.prefix_index = false}, ""), calls), 5) << calls;
  }
}

TEST(TurnLocks, AreNoMoreWhereTheDeviceSamples) {
  for (const std::size_t calls : {1, 7, 40}) {
    EXPECT_LE(locks_a_turn(load_sampling("tinyllama", {.prefix_index = false}), calls), 6) << calls;
  }
}

}  // namespace
}  // namespace dendrite
