// Pages run out: who gives way, and that nobody can tell afterwards.
#include <gtest/gtest.h>

#include <vector>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::greedy;
using test::joined;
using test::load;
using test::Random;
using test::replay;
using test::same_bits;
using test::Tokens;

Engine small(std::int64_t kv_tokens) {
  return load("tinyllama", {.kv_tokens = kv_tokens, .prefix_index = false});
}

Engine large() {
  return load("tinyllama", {.prefix_index = false});
}

Tokens unlimited(const Tokens& prompt, std::int64_t count) {
  Session session(large());
  Branch branch = session.prefill(std::span(prompt));
  return session.decode(branch, greedy(count)).ids;
}

std::int64_t computed(const Engine& engine, const Branch& branch) {
  return core_of(engine)->tree->computed(state_of(branch)->tip);
}

TEST(Eviction, AnIdleBranchLosesKvAndComesBackTheSame) {
  const Engine e = small(128);
  Session session(e);
  Random random(1);
  const Tokens one = random.tokens(90, 256);
  const Tokens two = random.tokens(100, 256);
  Branch first = session.prefill(std::span(one));
  Branch second = session.prefill(std::span(two));  // the two do not fit together
  EXPECT_EQ(second.finish(), Finish::kRunning);
  EXPECT_EQ(computed(e, first), 0);
  EXPECT_EQ(first.tokens(), one);
  EXPECT_GT(session.stats().evictions, 0);
  EXPECT_EQ(session.stats().tokens_regenerated, 0);
  EXPECT_EQ(session.decode(first, greedy(8)).ids, unlimited(one, 8));
  EXPECT_EQ(session.stats().tokens_regenerated, 90);
  EXPECT_EQ(session.stats().preemptions, 0);
  EXPECT_TRUE(same_bits(bits_of(first), replay(large(), first.tokens())));
  EXPECT_TRUE(same_bits(bits_of(second), replay(large(), two)));
  EXPECT_TRUE(test::tree_is_sound(e, {std::span(&first, 1), std::span(&second, 1)}));
}

TEST(Eviction, TakesSomeMoreWhereManyHadToBeLookedAt) {
  constexpr int kIdle = 2500;
  for (const int priority : {0, 1}) {
    const Engine e = small((kIdle + 8) * 16);
    Session session(e);
    const Tokens prompt = Random(1).tokens(16, 256);
    Branch root = session.prefill(std::span(prompt));
    std::vector<Branch> idle = root.fork(kIdle);
    for (std::size_t i = 0; i < idle.size(); ++i) {
      idle[i].append(std::vector<Token>{static_cast<Token>(i % 256)});
      idle[i].set_priority(priority);
    }
    session.decode(idle, greedy(1));
    Branch busy = root.fork();
    while (session.stats().evictions == 0) ASSERT_TRUE(session.decode_step(busy, greedy(1)));
    // One page was needed; those of a higher priority give no more than that.
    EXPECT_EQ(session.stats().evictions, priority == 0 ? 1 + kIdle / 1000 : 1);
    EXPECT_EQ(session.stats().preemptions, 0);
    EXPECT_TRUE(same_bits(bits_of(idle[0]), replay(large(), idle[0].tokens())));
  }
}

TEST(Eviction, TakesTheLowestPriorityThenTheLeastRecentlyUsed) {
  const Engine e = small(256);
  Session session(e);
  Random random(2);
  std::vector<Branch> idle;
  for (int i = 0; i < 4; ++i) {
    const Tokens prompt = random.tokens(48, 256);
    idle.push_back(session.prefill(std::span(prompt)));
  }
  idle[0].set_priority(1);
  idle[2].set_priority(-1);
  session.decode(idle[1], greedy(1));  // used more recently than 3
  const auto held = [&] {
    std::vector<bool> out;
    for (const Branch& branch : idle) out.push_back(computed(e, branch) > 0);
    return out;
  };
  const Tokens prompt = random.tokens(64, 256);
  Branch a = session.prefill(std::span(prompt));
  EXPECT_EQ(held(), (std::vector<bool>{true, true, true, true}));
  Branch b = session.prefill(random.tokens(40, 256));
  EXPECT_EQ(held(), (std::vector<bool>{true, true, false, true}));
  a.set_priority(2);
  b.set_priority(2);
  Branch c = session.prefill(random.tokens(40, 256));
  EXPECT_EQ(held(), (std::vector<bool>{true, true, false, false}));
  EXPECT_EQ(idle[0].fork().priority(), 1);
}

TEST(Eviction, KeepsWhatAMoreValuedBranchShares) {
  const Engine e = small(160);
  Session session(e);
  Random random(3);
  const Tokens prompt = random.tokens(64, 256);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> kids = root.fork(2);
  for (Branch& kid : kids) {
    kid.append(random.tokens(32, 256));
    test::logits_of(kid);
  }
  root.set_priority(5);
  kids[1].set_priority(1);
  Branch other = session.prefill(random.tokens(40, 256));
  EXPECT_EQ(computed(e, root), 64);  // through kids[0] only its own tokens were taken
  EXPECT_EQ(computed(e, kids[0]), 64);
  EXPECT_EQ(computed(e, kids[1]), 96);
  EXPECT_TRUE(same_bits(bits_of(kids[0]), replay(large(), kids[0].tokens())));
}

TEST(Eviction, AHolderInTheMiddleOfAPageComesBack) {
  // Forks inside pages, of evicted and of regenerated segments, on all page sizes.
  for (const int page_tokens : {8, 16, 32}) {
    const Engine e =
        load("tinyllama", {.page_tokens = page_tokens, .kv_tokens = 192, .prefix_index = false});
    Session session(e);
    Random random(4);
    Branch root = session.prefill(random.tokens(53, 256));
    Branch kid = root.fork();
    kid.append(random.tokens(30, 256));
    test::logits_of(kid);
    Branch cut = kid.at(71);
    Branch other = session.prefill(random.tokens(150, 256));
    EXPECT_EQ(computed(e, kid), 0);
    Branch late = cut.at(60);
    late.append(random.tokens(9, 256));
    for (Branch* branch : {&late, &cut, &kid, &root}) {
      EXPECT_TRUE(same_bits(bits_of(*branch), replay(large(), branch->tokens()))) << page_tokens;
    }
    EXPECT_TRUE(test::tree_is_sound(e, {std::span(&root, 1), std::span(&kid, 1), std::span(&cut, 1),
                                        std::span(&other, 1), std::span(&late, 1)}));
  }
}

TEST(Preemption, RunningBranchesThatDoNotFitTogetherAllFinish) {
  const Engine e = small(160);
  Session session(e);
  const Tokens prompt = Random(5).tokens(40, 256);
  const Tokens expected = unlimited(prompt, 100);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches = root.fork(4);
  const std::vector<Generation> out = session.decode(branches, greedy(100));
  for (std::size_t i = 0; i < branches.size(); ++i) {
    EXPECT_EQ(out[i].finish, Finish::kLength);
    EXPECT_EQ(out[i].ids, expected);
  }
  EXPECT_GE(session.stats().steps, 3 * 100);  // for want of pages
  EXPECT_FALSE(session.shortage().has_value());
}

TEST(Preemption, WhoCameLastGivesWayWhereTextsAreLongerThanExpected) {
  const Engine e = small(160);
  Session session(e);
  test::expect_short_texts(session);
  const Tokens prompt = Random(5).tokens(40, 256);
  const Tokens expected = unlimited(prompt, 60);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches = root.fork(3);
  for (const Generation& out : session.decode(branches, greedy(60))) EXPECT_EQ(out.ids, expected);
  EXPECT_GT(session.stats().preemptions, 0);
  EXPECT_LT(session.stats().preemptions, 12);  // and stays out until there is room
  for (Branch& branch : branches) {
    EXPECT_TRUE(same_bits(bits_of(branch), replay(large(), branch.tokens())));
  }
}

TEST(Preemption, ALowerPriorityGivesWayAtOnce) {
  const Engine e = small(160);
  Session session(e);
  const Tokens prompt = Random(6).tokens(16, 256);
  const Tokens expected = unlimited(prompt, 90);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches = root.fork(2);
  branches[1].set_priority(3);
  DecodeParams params = greedy(90);
  std::vector<std::size_t> order;  // whose token, over time
  params.on_token = [&](const TokenEvent& event) { order.push_back(event.index); };
  const std::vector<Generation> out = session.decode(branches, params);
  EXPECT_EQ(out[0].ids, expected);
  EXPECT_EQ(out[1].ids, expected);
  // Branch 1 is never held up: it has a token in each of the first 90 steps.
  std::size_t seen = 0;
  std::size_t longest_wait = 0;
  std::size_t wait = 0;
  for (const std::size_t index : order) {
    if (seen == 90) break;
    wait = index == 1 ? 0 : wait + 1;
    seen += index == 1 ? 1 : 0;
    longest_wait = std::max(longest_wait, wait);
  }
  EXPECT_LE(longest_wait, 1u);
}

TEST(Preemption, WhoNeverFitsDoesNotMakeOthersBeginAgain) {
  // 600 tokens take two steps. Between them, the one of the higher priority asks for pages again.
  const Engine e = small(640);
  Session session(e);
  const Tokens fits = Random(9).tokens(600, 256);
  std::vector<Branch> branches;
  branches.push_back(session.prefill(std::span(fits).first(8)));
  branches.push_back(branches[0].fork());
  branches[0].append(std::span(fits).subspan(8));
  branches[1].append(Random(10).tokens(700, 256));
  branches[1].set_priority(1);
  const std::vector<Generation> out = session.decode(branches, greedy(3));
  EXPECT_EQ(out[0].ids, unlimited(fits, 3));
  EXPECT_EQ(out[1].finish, Finish::kBudget);
  EXPECT_LT(session.stats().tokens_regenerated, 700);
}

TEST(Preemption, ContinuationsBeingScoredTakeTurns) {
  const Engine e = small(160);
  Session session(e);
  Random random(7);
  Branch root = session.prefill(random.tokens(64, 256));
  std::vector<Tokens> continuations;  // 12 x 2 pages, of 6 that are free
  for (int i = 0; i < 12; ++i) continuations.push_back(random.tokens(30, 256));
  const std::vector<Score> scores = root.score_tokens(continuations);
  Session alone(large());
  Branch same = alone.prefill(root.tokens());
  const std::vector<Score> expected = same.score_tokens(continuations);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    EXPECT_EQ(scores[i].tokens, expected[i].tokens);
  }
}

TEST(Eviction, AThousandExhaustionsLoseNothing) {
  const Engine e = small(256);
  Session session(e);
  Random random(8);
  std::vector<Branch> branches;
  std::vector<Tokens> tokens;
  for (int i = 0; i < 12; ++i) {
    tokens.push_back(random.tokens(random.in(30, 120), 256));
    branches.push_back(session.prefill(std::span(tokens.back())));
  }
  for (int i = 0; session.stats().evictions < 1000; ++i) {
    ASSERT_LT(i, 20000);
    const auto pick = static_cast<std::size_t>(random.below(12));
    if (random.one_in(3)) {
      const Generation out = session.decode(branches[pick], greedy(3));
      ASSERT_EQ(out.finish, Finish::kLength);
      tokens[pick] = joined(tokens[pick], out.ids);
    } else if (tokens[pick].size() > 200) {
      const auto from = static_cast<std::size_t>(random.below(12));
      tokens[pick].assign(tokens[from].begin(), tokens[from].begin() + 30);
      branches[pick] = branches[from].at(30);
    } else {
      const Tokens more = random.tokens(random.in(1, 40), 256);
      branches[pick].append(more);
      tokens[pick] = joined(tokens[pick], more);
    }
  }
  const Engine reference = large();
  for (std::size_t i = 0; i < branches.size(); ++i) {
    EXPECT_EQ(branches[i].tokens(), tokens[i]);
    EXPECT_TRUE(same_bits(bits_of(branches[i]), replay(reference, tokens[i]))) << i;
  }
}

}  // namespace
}  // namespace dendrite
