#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

#include "recurrence_fixture.h"

// What holds for recurrent layers of any kind; `Fixture`: a RecurrenceFixture.
namespace dendrite::testing_support {

template <class Fixture>
void expect_same_bits_however_cut(Fixture& net, std::int64_t length = 70) {
  Random random(3);
  const std::int64_t first = net.make_rows(length);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(length));
  std::iota(rows.begin(), rows.end(), first);
  const std::vector<float> whole = net.replayed(rows);
  for (int round = 0; round < 6; ++round) {
    net.clear_states();
    RecurrentBranch branch;
    for (std::int64_t at = 0; at < length;) {
      // One by one with all states and with no more than must be; then cut anywhere, also into
      // runs of one call.
      const bool eager = round < 2 ? round == 0 : random.in(0, 1) == 0;
      const std::int64_t most = round < 2 ? 1 : random.in(1, 2) == 1 ? 5 : 4 * length / 7;
      const std::int64_t count = std::min(length - at, random.in(1, most));
      net.add(branch, first + at, count, Fixture::Keep::kAll, eager);
      if (round < 4 || random.in(0, 2) == 0) net.run();
      at += count;
    }
    if (!net.plan.runs.empty()) net.run();
    EXPECT_EQ(first_difference(net.out_of(rows), whole), -1) << round;
  }
}

template <class Fixture>
void expect_forks_equal_replays(Fixture& net) {
  Random random(5);
  std::vector<RecurrentBranch> branches(1);
  for (int step = 0; step < 9; ++step) {
    // A call: branches grow or fork, and some forks grow in the same call.
    const std::int64_t ways = step == 0 ? 1 : 4;
    for (std::int64_t i = 0; i < ways; ++i) {
      const auto at = static_cast<std::size_t>(random.in(0, std::ssize(branches) - 1));
      RecurrentBranch* branch = &branches[at];
      if (step > 0 && branches.size() < 12 && random.in(0, 2) > 0) {
        branches.push_back(branches[at]);
        branch = &branches.back();
      }
      const std::int64_t count = random.in(0, 3) == 0 ? random.in(0, 40) : random.in(0, 9);
      net.add(*branch, net.make_rows(count), count, Fixture::Keep::kAll, random.in(0, 1) == 0);
    }
    EXPECT_TRUE(net.run());
  }
  ASSERT_GT(branches.size(), 5U);
  for (const RecurrentBranch& branch : branches) {
    EXPECT_EQ(first_difference(net.out_of(branch.rows), net.replayed(branch.rows)), -1)
        << branch.rows.size();
  }
}

/// Trees of short runs in one call, of more rows than a GPU takes as one and over more chunks than
/// one, behind a path that ends anywhere in its chunk.
template <class Fixture>
void expect_trees_equal_replays(Fixture& net) {
  Random random(6);
  for (int round = 0; round < 3; ++round) {
    net.clear_states();
    RecurrentBranch root;
    const std::int64_t length = random.in(0, 33);
    net.add(root, net.make_rows(length), length);
    net.run();
    std::vector<RecurrentBranch> branches(1, root);
    const std::int64_t runs = round == 0 ? 6 : 70;
    for (std::int64_t i = 0; i < runs; ++i) {
      // The last one goes on, or a new one begins where any other ends.
      const bool goes_on = random.in(0, 4) == 0;
      const std::int64_t last = std::ssize(branches) - 1;
      const auto from = static_cast<std::size_t>(goes_on ? last : random.in(0, last));
      RecurrentBranch branch = branches[from];
      const std::int64_t count = random.in(1, 3);
      net.add(branch, net.make_rows(count), count);
      branches.push_back(std::move(branch));
    }
    EXPECT_TRUE(net.run());
    // Longer ones have the rows of shorter ones.
    std::ranges::sort(branches, std::greater{}, [](const auto& of) { return of.rows.size(); });
    branches.resize(std::min<std::size_t>(branches.size(), 24));
    for (const RecurrentBranch& branch : branches) {
      EXPECT_EQ(first_difference(net.out_of(branch.rows), net.replayed(branch.rows)), -1)
          << branch.rows.size();
    }
    // What they left is what was to be left.
    const std::int64_t count = random.in(1, 20);
    for (std::size_t i = 0; i < std::min<std::size_t>(branches.size(), 6); ++i) {
      net.add(branches[i], net.make_rows(count), count);
    }
    EXPECT_TRUE(net.run());
    for (std::size_t i = 0; i < std::min<std::size_t>(branches.size(), 6); ++i) {
      EXPECT_EQ(first_difference(net.out_of(branches[i].rows), net.replayed(branches[i].rows)), -1);
    }
  }
}

/// Rows and the states behind whole chunks, of paths of some lengths. Whose reference has both.
template <class Fixture>
void expect_equals_reference(Fixture& net, double tolerance) {
  for (const std::int64_t length : {1, 2, 15, 16, 17, 33, 70}) {
    RecurrentBranch branch;
    net.clear_states();
    net.add(branch, net.make_rows(length), length);
    EXPECT_TRUE(net.run()) << "padding or another layer was written";
    const auto expected = net.reference(branch.rows);
    EXPECT_LE(relative_error(net.out_of(branch.rows), expected.out), tolerance) << length;
    if (length % kChunkTokens != 0) continue;
    const auto anchor = net.anchor(branch.anchor);
    const auto state = std::span(anchor).subspan(
        static_cast<std::size_t>(Fixture::kLayer * net.op().anchor_values()),
        expected.state.size());
    EXPECT_LE(relative_error(state, expected.state), 1e-5) << length;
  }
}

/// A run without rows makes the anchor of a whole chunk of journals. convolved_at: of a row, the
/// first column that is convolved.
template <class Fixture>
void expect_journals_become_the_state(Fixture& net, std::int64_t convolved_at) {
  using Keep = typename Fixture::Keep;
  const std::int64_t first = net.make_rows(32);
  RecurrentBranch eager;
  net.add(eager, first, 16);
  RecurrentBranch lazy = eager;
  net.add(eager, first + 16, 16);
  net.add(lazy, first + 16, 16, Keep::kAll, false);
  net.run();
  ASSERT_EQ(lazy.journals.size(), 16U);
  net.add(lazy, 0, 0);  // of what is known alone
  net.run();
  ASSERT_EQ(lazy.journals.size(), 0U);
  const auto expected = net.anchor(eager.anchor);
  EXPECT_EQ(first_difference(net.anchor(lazy.anchor), expected), -1);
  // Its tail is what came in last, and the layers beside it are untouched.
  const auto& args = net.op();
  const std::int64_t tail = (args.taps - 1) * args.channels();
  for (std::int64_t i = 0; i < tail; ++i) {
    const std::int64_t row = first + 32 - (args.taps - 1) + i / args.channels();
    const std::int64_t from = row * net.width() + convolved_at + i % args.channels();
    ASSERT_EQ(expected[expected.size() - static_cast<std::size_t>(tail - i)],
              net.in[static_cast<std::size_t>(from)]);
  }
  EXPECT_TRUE(std::all_of(expected.begin(), expected.begin() + args.anchor_values(),
                          [](float x) { return x == 0; }));
}

}  // namespace dendrite::testing_support
