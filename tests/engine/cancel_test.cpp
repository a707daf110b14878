// What ends a call from inside: a step that its caller has had enough of, one branch's own stop
// token, and what any of the caller's functions throws.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::Random;
using test::Tokens;

const Tokens kPrompt = Random(8).tokens(20, 256);

struct Interrupt : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Three branches at different points, and what each decodes to.
struct CancelInside : ::testing::Test {
  static constexpr std::int64_t kTokens = 24;
  Engine engine = load("llama2");
  Session session{engine};
  Branch root = session.prefill(kPrompt);
  std::vector<Branch> branches = make();
  std::vector<Generation> expected = [this] {
    std::vector<Branch> same = make();
    return session.decode(same, greedy(kTokens));
  }();

  std::vector<Branch> make() {
    std::vector<Branch> out = root.fork(3);
    for (std::size_t i = 0; i < out.size(); ++i) out[i].append(Tokens{static_cast<Token>(40 + i)});
    return out;
  }
  Tokens first(std::size_t i, std::int64_t count) const {
    return {expected[i].ids.begin(), expected[i].ids.begin() + count};
  }
  /// Where the branch draws a token that no branch drew before.
  int first_of_its_own(std::size_t branch) const {
    for (int at = 1; at < kTokens; ++at) {
      const Token token = expected[branch].ids[static_cast<std::size_t>(at)];
      int drawn = 0;
      for (std::size_t i = 0; i < 3; ++i) {
        drawn += static_cast<int>(std::ranges::count(first(i, at + 1), token));
      }
      if (drawn == 1) return at;
    }
    throw std::logic_error("no such token");
  }
};

TEST_F(CancelInside, AStepIsToldAtOnceInOrderAfterItsTokens) {
  std::vector<std::pair<std::size_t, Token>> one_by_one;
  std::vector<std::pair<std::size_t, Token>> by_step;
  std::vector<std::string> texts(3);
  DecodeParams params = greedy(kTokens);
  params.on_token = [&](const TokenEvent& event) {
    one_by_one.emplace_back(event.index, event.token);
  };
  params.on_step = [&](std::span<const TokenEvent> step) {
    EXPECT_EQ(step.size(), 3u);
    for (const TokenEvent& event : step) {
      EXPECT_EQ(event.branch, branches[event.index].id());
      by_step.emplace_back(event.index, event.token);
      texts[event.index] += event.text;
    }
    EXPECT_EQ(one_by_one, by_step);
    return true;
  };
  const std::vector<Generation> out = session.decode(branches, params);
  EXPECT_EQ(by_step.size(), 3u * kTokens);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(out[i].ids, expected[i].ids);
    EXPECT_EQ(texts[i], expected[i].text);
  }
}

TEST_F(CancelInside, AStepThatIsTheLastEndsTheCall) {
  int steps = 0;
  int asked = 0;
  const int last = 1 + first_of_its_own(1);
  DecodeParams params = greedy(kTokens);
  params.stop_tokens = {expected[1].ids[static_cast<std::size_t>(last - 1)]};
  params.on_step = [&](std::span<const TokenEvent>) { return ++steps < last; };
  params.enough = [&](std::size_t, const Generation&) { return ++asked, false; };
  const std::vector<Generation> out = session.decode(branches, params);
  EXPECT_EQ(steps, last);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(out[0].finish, Finish::kCancelled);
  EXPECT_EQ(out[1].finish, Finish::kStop);  // with that step
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(out[i].ids, first(i, last));
    EXPECT_TRUE(branches[i].valid());
  }
}

TEST_F(CancelInside, OneBranchLeavesAloneByItsOwnToken) {
  std::vector<std::stop_source> stops(3);
  DecodeParams params = greedy(kTokens);
  for (const std::stop_source& stop : stops) params.cancel_each.push_back(stop.get_token());
  stops[0].request_stop();
  params.on_token = [&](const TokenEvent& event) {
    if (event.index == 2 && event.token == expected[2].ids[6]) stops[2].request_stop();
  };
  const std::vector<Generation> out = session.decode(branches, params);
  EXPECT_EQ(out[0].finish, Finish::kCancelled);
  EXPECT_TRUE(out[0].ids.empty());
  EXPECT_EQ(out[1].ids, expected[1].ids);
  EXPECT_EQ(out[1].finish, Finish::kLength);
  EXPECT_EQ(out[2].finish, Finish::kCancelled);
  EXPECT_EQ(branches[2].finish(), Finish::kCancelled);
  EXPECT_LE(out[2].ids.size(), 7u);
  EXPECT_EQ(out[2].ids, first(2, std::ssize(out[2].ids)));
  params.cancel_each.pop_back();
  EXPECT_ERROR(session.decode(branches, params), "cancel_each has 2 elements; expected none or 3");
}

/// All lanes have the step's token, and the text that goes with it: they go on as if nothing had
/// been. Others do not notice.
TEST_F(CancelInside, WhatAFunctionThrowsLeavesTheStepComplete) {
  const std::int64_t pages = session.stats().pages_used;
  for (const char* where : {"on_token", "on_step", "enough"}) {
    const bool by_enough = std::string(where) == "enough";
    PendingDecode other = session.submit_decode(make(), greedy(kTokens));
    std::vector<Branch> mine = make();
    DecodeParams params = greedy(kTokens);
    int heard = 0;
    const auto hear = [&](const char* what) {
      if (what == std::string(where) && ++heard == 5) throw Interrupt(what);
    };
    params.on_token = [&](const TokenEvent& event) {
      if (event.index == 1) hear("on_token");
    };
    params.on_step = [&](std::span<const TokenEvent>) { return hear("on_step"), true; };
    if (by_enough) {
      heard = 4;
      params.max_tokens = 5;
      params.enough = [&](std::size_t, const Generation&) { return hear("enough"), false; };
    }
    try {
      session.decode(mine, params);
      ADD_FAILURE() << where << ": nothing came to the caller";
    } catch (const Interrupt& interrupt) {
      EXPECT_STREQ(interrupt.what(), where);
    }
    EXPECT_EQ(heard, 5);
    for (const Branch& branch : mine) {
      EXPECT_EQ(branch.finish(), by_enough ? Finish::kLength : Finish::kCancelled) << where;
      EXPECT_EQ(branch.length(), 26) << where;
    }
    const std::vector<Generation> rest = session.decode(mine, greedy(kTokens - 5));
    for (std::size_t i = 0; i < 3; ++i) {
      const Generation& whole = expected[i];
      EXPECT_EQ(test::joined(first(i, 5), rest[i].ids), whole.ids) << where;
      ASSERT_LE(rest[i].text.size(), whole.text.size());
      EXPECT_EQ(rest[i].text, whole.text.substr(whole.text.size() - rest[i].text.size())) << where;
    }
    const std::vector<Generation> undisturbed = other.get();
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(undisturbed[i].ids, expected[i].ids) << where;
  }
  EXPECT_EQ(session.stats().pages_used, pages);
}

}  // namespace
}  // namespace dendrite
