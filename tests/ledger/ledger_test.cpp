// What a program did outside for branches: it goes where they go, and is told of once.
#include "dendrite/ledger.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::load;
using test::Random;
using test::Tokens;

std::vector<std::string> keys_of(const std::vector<Effect>& effects) {
  std::vector<std::string> keys;
  for (const Effect& effect : effects) keys.push_back(effect.key);
  return keys;
}

using Keys = std::vector<std::string>;

class LedgerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = new Engine(load("tinyllama")); }
  static void TearDownTestSuite() { delete engine_; }

  Branch prompt(std::int64_t length = 10) {
    return session_.prefill(std::span<const Token>(Random(1).tokens(length, 256)));
  }
  void done(const Branch& branch, const std::string& key) {
    ledger_.end(ledger_.begin(branch, key), "value of " + key);
  }
  Keys path(const Branch& branch) const { return keys_of(ledger_.path(branch)); }

  static Engine* engine_;
  Session session_{*engine_};
  Keys committed_;
  Keys aborted_;
  LedgerHooks hooks_{[this](const Effect& effect) { committed_.push_back(effect.key); },
                     [this](const Effect& effect) { aborted_.push_back(effect.key); }};
  Ledger ledger_{session_, hooks_};
};
Engine* LedgerTest::engine_ = nullptr;

TEST_F(LedgerTest, EffectsGoWithForksAndNotWithCuts) {
  Branch root = prompt();
  Branch before = root.fork();
  done(root, "a");
  root.append(Tokens{1, 2, 3});
  done(root, "b");
  done(root, "c");
  root.append(Tokens{4});
  EXPECT_EQ(path(root), (Keys{"a", "b", "c"}));
  EXPECT_EQ(path(before), Keys());
  const Branch fork = root.fork();
  EXPECT_EQ(path(fork), (Keys{"a", "b", "c"}));
  EXPECT_EQ(path(root.at(13)), (Keys{"a", "b", "c"}));  // where they were begun
  Branch past = root.at(12);
  EXPECT_EQ(path(past), Keys{"a"});
  EXPECT_EQ(path(root.at(9)), Keys());
  done(past, "d");
  EXPECT_EQ(path(past), (Keys{"a", "d"}));
  EXPECT_EQ(path(root), (Keys{"a", "b", "c"}));
  std::vector<Branch> roots;
  roots.push_back(std::move(root));
  const std::vector<Branch> children = std::move(session_.expand(roots, {.top = 2}).front());
  EXPECT_EQ(path(children[1]), (Keys{"a", "b", "c"}));

  const std::vector<Effect> lineage = ledger_.path(past);
  EXPECT_EQ(lineage[0].parent, EffectId::kNone);
  EXPECT_EQ(lineage[1].parent, lineage[0].id);
  EXPECT_EQ(lineage[1].length, 12);
  EXPECT_EQ(lineage[1].value, "value of d");
}

TEST_F(LedgerTest, ACallIsMadeOnceAtItsPlace) {
  Branch branch = prompt();
  int calls = 0;
  const auto call = [&] { return "result " + std::to_string(++calls); };
  EXPECT_EQ(ledger_.once(branch, "ls", call), "result 1");
  EXPECT_EQ(ledger_.once(branch, "ls", call), "result 1");
  Branch fork = branch.fork();
  EXPECT_EQ(ledger_.once(fork, "ls", call), "result 1");
  EXPECT_EQ(ledger_.once(branch, "pwd", call), "result 2");
  EXPECT_EQ(ledger_.once(fork, "pwd", call), "result 3");  // it was forked before
  branch.append(Tokens{7});
  EXPECT_EQ(ledger_.once(branch, "ls", call), "result 4");  // another one, further on
  Branch past = branch.at(10);
  EXPECT_EQ(ledger_.once(past, "ls", call), "result 1");
  EXPECT_EQ(calls, 4);

  // One that fails was none.
  EXPECT_THROW(ledger_.once(past, "rm", []() -> std::string { throw std::logic_error("no"); }),
               std::logic_error);
  EXPECT_EQ(ledger_.find(past, "rm"), std::nullopt);
  EXPECT_EQ(ledger_.once(past, "rm", call), "result 5");
  EXPECT_ERROR(ledger_.begin(past, "rm"), "the branch has \"rm\" at token 10; expected it once");
}

TEST_F(LedgerTest, WhatNobodyHasAnyMoreIsAborted) {
  Branch root = prompt();
  done(root, "a");
  Branch left = root.fork();
  Branch right = root.fork();
  done(left, "b");
  left.append(Tokens{3});
  done(left, "c");
  left.prune();
  EXPECT_EQ(aborted_, Keys());  // not in the thread that prunes
  ledger_.settle();
  EXPECT_EQ(aborted_, (Keys{"c", "b"}));  // the last one first
  right.prune();
  root.prune();
  done(prompt(), "e");  // and gone
  ledger_.settle();
  EXPECT_EQ(aborted_, (Keys{"c", "b", "a", "e"}));
  EXPECT_EQ(committed_, Keys());
}

TEST_F(LedgerTest, WhatIsCommittedIsFinal) {
  Branch root = prompt();
  done(root, "a");
  Branch winner = root.fork();
  Branch loser = root.fork();
  done(winner, "b");
  done(loser, "c");
  ledger_.commit(winner);
  EXPECT_EQ(committed_, (Keys{"a", "b"}));
  EXPECT_TRUE(ledger_.path(loser)[0].committed);
  winner.append(Tokens{5});
  done(winner, "d");
  ledger_.commit(winner);
  EXPECT_EQ(committed_, (Keys{"a", "b", "d"}));  // each once
  for (Branch* branch : {&winner, &loser, &root}) branch->prune();
  ledger_.settle();
  EXPECT_EQ(aborted_, Keys{"c"});
}

TEST_F(LedgerTest, WhatHasNotEndedIsNeitherFinalNorUndone) {
  Branch branch = prompt();
  const EffectId open = ledger_.begin(branch, "slow");
  EXPECT_ERROR(ledger_.commit(branch), "\"slow\", begun at token 10, has not ended");
  EXPECT_ERROR(ledger_.once(branch, "slow", [] { return std::string(); }), "has not ended");
  branch.prune();
  ledger_.settle();
  EXPECT_EQ(aborted_, Keys());
  ledger_.end(open, "done");
  EXPECT_EQ(aborted_, Keys{"slow"});
  EXPECT_ERROR(ledger_.end(open, "again"), "no effect 1");
  Branch other = prompt();
  const EffectId ended = ledger_.begin(other, "x");
  ledger_.end(ended, "");
  EXPECT_ERROR(ledger_.end(ended, ""), "\"x\" has ended");
  EXPECT_ERROR(ledger_.forget(ended), "\"x\" has ended");
}

TEST_F(LedgerTest, WhatIsForgottenWasNeverBegun) {
  Branch branch = prompt();
  done(branch, "a");
  const EffectId open = ledger_.begin(branch, "b");
  done(branch, "c");
  const Branch fork = branch.fork();
  ledger_.forget(open);
  EXPECT_EQ(path(branch), (Keys{"a", "c"}));
  EXPECT_EQ(path(fork), (Keys{"a", "c"}));
  const EffectId last = ledger_.begin(branch, "d");
  const Branch other = branch.fork();
  ledger_.forget(last);
  EXPECT_EQ(path(other), (Keys{"a", "c"}));
  EXPECT_EQ(aborted_, Keys());
}

TEST_F(LedgerTest, ABranchThatIsNoForkMayFollowAnother) {
  Branch branch = prompt();
  done(branch, "a");
  Branch composed = prompt(7);
  done(composed, "b");
  ledger_.follow(composed, branch);
  EXPECT_EQ(path(composed), Keys{"a"});
  EXPECT_EQ(aborted_, Keys{"b"});
  branch.prune();
  ledger_.settle();
  EXPECT_EQ(aborted_, Keys{"b"});
}

TEST_F(LedgerTest, HooksMayUseTheLedgerAndThrow) {
  int told = 0;
  Ledger* self = nullptr;
  Ledger ledger(session_, {.on_commit = [&](const Effect& effect) {
                  ++told;
                  self->settle();
                  if (effect.key == "bad") throw std::logic_error("no");
                }});
  self = &ledger;
  Branch branch = prompt();
  for (const char* key : {"bad", "good"}) ledger.end(ledger.begin(branch, key), "");
  EXPECT_THROW(ledger.commit(branch), std::logic_error);
  EXPECT_EQ(told, 1);
  ledger.settle();
  EXPECT_EQ(told, 2);
}

TEST_F(LedgerTest, OtherSessionsAreNotItsOwn) {
  Branch branch = prompt();
  done(branch, "a");
  Session other(*engine_);
  const Tokens tokens = Random(1).tokens(10, 256);
  Branch same_id = other.prefill(std::span(tokens));
  ASSERT_EQ(same_id.id(), branch.id());
  same_id.prune();
  ledger_.settle();
  EXPECT_EQ(path(branch), Keys{"a"});
}

TEST_F(LedgerTest, ARestoredBranchRepeatsNoCall) {
  Branch branch = prompt();
  int calls = 0;
  const auto pay = [&] { return "paid \xff\xc3\xa9 " + std::to_string(++calls); };
  const std::string value = ledger_.once(branch, "pay\n5", pay);
  Branch other = branch.fork();
  branch.append(Tokens{1});
  ledger_.begin(branch, "slow");
  done(other, "elsewhere");
  ledger_.commit(other);
  const std::string saved = ledger_.save();
  EXPECT_TRUE(ledger_.path(branch)[0].saved);
  const Branch* const one = &branch;
  const std::vector<std::byte> bytes = session_.snapshot(std::span(&one, 1), {.attachment = saved});

  Restored restored = engine_->restore(bytes);
  Keys aborted;
  Ledger ledger(restored.session, restored.attachment, restored.branches,
                {.on_abort = [&](const Effect& effect) { aborted.push_back(effect.key); }});
  Branch& back = restored.branches[0];
  EXPECT_EQ(keys_of(ledger.path(back)), (Keys{"pay\n5", "slow"}));
  EXPECT_TRUE(ledger.path(back)[0].committed);
  Branch past = back.at(10);
  EXPECT_EQ(ledger.once(past, "pay\n5", pay), value);
  EXPECT_EQ(calls, 1);
  // One that was under way: nobody knows.
  EXPECT_ERROR(ledger.once(back, "slow", pay), "has not ended");
  ledger.end(ledger.path(back)[1].id, "it was made");
  EXPECT_EQ(ledger.once(back, "slow", pay), "it was made");
  EXPECT_EQ(aborted, Keys());  // of what other branches had nobody speaks
  const EffectId next = ledger.begin(past, "next");
  for (const Effect& effect : ledger.path(back)) EXPECT_NE(effect.id, next);
  EXPECT_GT(next, ledger_.path(other)[1].id);
}

TEST_F(LedgerTest, TextsOfAnotherFormAreRefused) {
  Branch branch = prompt();
  done(branch, "a");
  branch.append(Tokens{2});
  done(branch, "b");
  const std::string good = ledger_.save();
  const auto refused = [&](const std::string& text) {
    return test::error_of([&] { Ledger(session_, text, std::span(&branch, 1)); });
  };
  EXPECT_EQ(refused(good).find("ledger"), std::string::npos);
  for (const std::string text : {"", "[]", "7", "{\"ledger\":2}", "{\"ledger\":1}"}) {
    EXPECT_NE(refused(text).find("ledger: a saved text "), std::string::npos) << text;
  }
  for (std::size_t cut = 0; cut < good.size(); ++cut) {
    EXPECT_NE(refused(good.substr(0, cut)).find("ledger: a saved text "), std::string::npos);
  }
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return refused(text);
  };
  EXPECT_NE(changed("\"parent\":1", "\"parent\":2").find("before its parent"), std::string::npos);
  EXPECT_NE(changed("\"parent\":0", "\"parent\":9").find("before its parent"), std::string::npos);
  EXPECT_NE(changed("\"id\":2", "\"id\":1").find("wrong id"), std::string::npos);
  EXPECT_NE(changed("\"last\":2", "\"last\":3").find("it has not"), std::string::npos);
  EXPECT_NE(changed("\"a\"", "\"\xe2\x82\xac\"").find("above 255"), std::string::npos);
  EXPECT_NE(refused(std::string(200000, '[')).find("no JSON"), std::string::npos);
  Random random(3);
  for (int round = 0; round < test::scaled(2000); ++round) {
    std::string text = good;
    for (std::int64_t i = random.in(1, 4); i > 0; --i) {
      text[static_cast<std::size_t>(random.below(std::ssize(text)))] =
          static_cast<char>(random.below(256));
    }
    refused(text);
  }
}

/// Random programs against lists that each branch carries itself.
TEST_F(LedgerTest, AgreesWithListsThatAreCopied) {
  struct Kept {
    Branch branch;
    std::vector<std::pair<std::string, std::int64_t>> path;  // key, length
  };
  Random random(11);
  std::set<std::string> begun;
  std::set<std::string> committed;
  std::vector<Kept> live;
  for (int step = 0; step < test::scaled(4000); ++step) {
    if (live.empty()) live.push_back({prompt(), {}});
    Kept& one = live[static_cast<std::size_t>(random.below(std::ssize(live)))];
    switch (random.below(6)) {
      case 0:
        if (live.size() < 30) live.push_back({one.branch.fork(), one.path});
        break;
      case 1: {
        if (live.size() >= 30) break;
        Kept past{one.branch.at(random.in(1, one.branch.length())), one.path};
        while (!past.path.empty() && past.path.back().second > past.branch.length()) {
          past.path.pop_back();
        }
        live.push_back(std::move(past));
        break;
      }
      case 2:
        if (one.branch.length() < 60) one.branch.append(random.tokens(random.in(1, 3), 256));
        break;
      case 3: {
        const std::string key = std::to_string(step);
        done(one.branch, key);
        one.path.emplace_back(key, one.branch.length());
        begun.insert(key);
        break;
      }
      case 4:
        if (random.one_in(8)) {
          ledger_.commit(one.branch);
          for (const auto& [key, length] : one.path) committed.insert(key);
        }
        break;
      default: {
        std::swap(one, live.back());
        live.pop_back();
      }
    }
    Keys got;
    Keys expected;
    if (!live.empty()) {
      const Kept& any = live[static_cast<std::size_t>(random.below(std::ssize(live)))];
      got = path(any.branch);
      for (const auto& [key, length] : any.path) expected.push_back(key);
    }
    ASSERT_EQ(got, expected);
  }
  ledger_.settle();
  std::set<std::string> held;
  for (const Kept& one : live) {
    for (const auto& [key, length] : one.path) held.insert(key);
  }
  EXPECT_EQ(std::set<std::string>(committed_.begin(), committed_.end()), committed);
  EXPECT_EQ(committed_.size(), committed.size());
  const std::set<std::string> aborted(aborted_.begin(), aborted_.end());
  EXPECT_EQ(aborted.size(), aborted_.size());
  EXPECT_GT(aborted.size(), 50u);
  for (const std::string& key : begun) {
    EXPECT_EQ(aborted.contains(key), !held.contains(key) && !committed.contains(key)) << key;
  }
}

TEST_F(LedgerTest, ThreadsOfASearchShareIt) {
  constexpr int kThreads = 4;
  Branch root = prompt();
  done(root, "root");
  std::vector<Branch> starts = root.fork(kThreads);
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int round = 0; round < test::scaled(200); ++round) {
          Branch branch = starts[static_cast<std::size_t>(t)].fork();
          const std::string key = std::to_string(t) + "/" + std::to_string(round);
          if (ledger_.once(branch, key, [&] { return key; }) != key) ++wrong;
          Branch fork = branch.fork();
          branch.prune();
          if (keys_of(ledger_.path(fork)) != Keys{"root", key}) ++wrong;
        }
      });
    }
  }
  ledger_.settle();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(aborted_.size(), static_cast<std::size_t>(kThreads * test::scaled(200)));
}

TEST(LedgerOfASearch, HasTheWinnersEffectsCommittedAndTheOthersAborted) {
  Session session(load("dendrite-24"));
  Keys committed;
  std::size_t aborted = 0;
  Ledger ledger(session, {[&](const Effect& effect) { committed.push_back(effect.key); },
                          [&](const Effect&) { ++aborted; }});
  int number = 0;
  BestOfN strategy{.n = 5, .sampling = {.max_tokens = 4, .temperature = 2.0}};
  strategy.judgement.judge = [&](Session&, std::span<Branch> branches) {
    std::vector<double> values;
    for (const Branch& branch : branches) {
      const std::string key = "test " + std::to_string(number);
      ledger.once(branch, key, [] { return std::string("ran"); });
      values.push_back(number++);
    }
    return values;
  };
  {
    const SearchResult result = session.run_tree(strategy, "S 24: 4 9 10 13\n");
    ledger.commit(result.branch);
    EXPECT_EQ(committed, Keys{"test 4"});
  }
  ledger.settle();
  EXPECT_EQ(aborted, 4u);
}

}  // namespace
}  // namespace dendrite
