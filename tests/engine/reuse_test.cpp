// What prompts share with others, told of each of them.
#include <gtest/gtest.h>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::joined;
using test::load;
using test::Random;
using test::Tokens;

/// Of a prompt: what it had from others, and what it computed.
std::pair<std::int64_t, std::int64_t> reuse_of(const Branch& branch) {
  const std::int64_t shared = branch.stats().prompt_shared;
  return {shared, branch.prompt_length() - shared};
}

using Reuse = std::pair<std::int64_t, std::int64_t>;

TEST(Reuse, OfAPromptIsWhatOthersComputedOfIt) {
  Random random(3);
  const Engine engine = load("tinyllama");
  Session session(engine);
  Session other(engine);
  const Tokens prompt = random.tokens(50, 256);
  Branch first = session.prefill(std::span(prompt));
  EXPECT_EQ(reuse_of(first), Reuse(0, 50));
  EXPECT_EQ(first.stats().tokens_computed, 50);
  const Branch again = other.prefill(std::span(prompt));
  EXPECT_EQ(reuse_of(again), Reuse(50, 0));
  const Branch longer =
      other.prefill(std::span<const Token>(joined(prompt, random.tokens(9, 256))));
  EXPECT_EQ(reuse_of(longer), Reuse(50, 9));
  const Branch apart = session.prefill(
      std::span<const Token>(joined(Tokens(prompt.begin(), prompt.begin() + 21), Tokens{1, 1, 1})));
  EXPECT_EQ(apart.stats().prompt_shared, prompt[21] == 1 ? 22 : 21);

  // What was generated is found, too, but for the last token, whose K and V nobody wanted.
  session.decode(first, greedy(10));
  const Tokens all = first.tokens();
  const Branch turn = session.prefill(std::span<const Token>(joined(all, Tokens{5, 6})));
  EXPECT_EQ(reuse_of(turn), Reuse(59, 3));
}

TEST(Reuse, WithoutAnIndexIsNone) {
  Session session(load("tinyllama", {.prefix_index = false}));
  const Tokens prompt = Random(4).tokens(20, 256);
  const Branch first = session.prefill(std::span(prompt));
  const Branch second = session.prefill(std::span(prompt));
  EXPECT_EQ(reuse_of(second), Reuse(0, 20));
}

TEST(Reuse, ForksHaveTheirPrompts) {
  Session session(load("tinyllama"));
  const Tokens prompt = Random(5).tokens(40, 256);
  const Branch before = session.prefill(std::span(prompt).first(30));
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> forks = root.fork(3);
  session.decode(forks, greedy(5));
  for (const Branch& fork : forks) EXPECT_EQ(reuse_of(fork), Reuse(30, 10));
  Branch past = forks[0].at(12);
  EXPECT_EQ(reuse_of(past), Reuse(12, 0));
  EXPECT_EQ(reuse_of(forks[0].at(35)), Reuse(30, 5));
}

/// Prompts that come at once: each token is computed once, by one of them.
TEST(Reuse, OfPromptsThatComeAtOnceIsExact) {
  Random random(6);
  const Engine engine = load("tinyllama");
  std::vector<Session> sessions;
  for (int i = 0; i < 3; ++i) sessions.emplace_back(engine);
  const Tokens trunk = random.tokens(70, 256);
  std::vector<Tokens> prompts = {trunk, trunk, joined(trunk, random.tokens(8, 256)), trunk,
                                 joined(Tokens(trunk.begin(), trunk.begin() + 33), Tokens{2, 3})};
  std::vector<PendingPrefill> calls;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    calls.push_back(sessions[i % 3].submit_prefill(std::span<const Token>(prompts[i])));
  }
  std::vector<Branch> branches;
  for (PendingPrefill& call : calls) branches.push_back(call.get());
  std::int64_t computed = 0;
  for (const Branch& branch : branches) computed += reuse_of(branch).second;
  EXPECT_EQ(computed, 70 + 8 + 2);
  EXPECT_EQ(reuse_of(branches[0]), Reuse(0, 70));
  EXPECT_EQ(reuse_of(branches[1]), Reuse(70, 0));
  EXPECT_EQ(reuse_of(branches[2]), Reuse(70, 8));
  EXPECT_EQ(reuse_of(branches[4]), Reuse(33, 2));
}

TEST(Reuse, IsOfPromptsOfOneSaltAlone) {
  Random random(9);
  const Engine engine = load("tinyllama");
  Session session(engine);
  const Tokens prompt = random.tokens(50, 256);
  std::vector<Tokens> drawn;
  std::vector<Branch> kept;
  for (const char* salt : {"", "one", "two", "one ", "0"}) {
    const PrefillOptions options{.stream = 7, .salt = salt};
    Branch first = session.prefill(std::span(prompt), options);
    EXPECT_EQ(reuse_of(first), Reuse(0, 50)) << salt;
    EXPECT_EQ(reuse_of(session.prefill(std::span(prompt), options)), Reuse(50, 0)) << salt;
    Branch fork = first.fork();
    session.decode(fork, greedy(10));
    drawn.push_back(fork.tokens());
    // What a fork, a cut and an answer have is their prompt's salt's, too.
    Branch cut = first.at(30);
    cut.append(random.tokens(8, 256));
    session.decode(cut, greedy(1));
    for (const Branch* branch : {&fork, &cut}) {
      const Tokens all = branch->tokens();
      EXPECT_EQ(reuse_of(session.prefill(std::span(all), options)).second, 1) << salt;
    }
    kept.push_back(std::move(first));
    kept.push_back(std::move(cut));
  }
  for (const Tokens& each : drawn) EXPECT_EQ(each, drawn.front());  // no bit depends on it
  EXPECT_EQ(session.stats().tokens_redundant, 0);
}

TEST(Reuse, OfPromptsThatComeAtOnceIsOfOneSaltAlone) {
  const Engine engine = load("tinyllama");
  Session session(engine);
  const Tokens prompt = Random(10).tokens(60, 256);
  std::vector<PendingPrefill> calls;
  for (const char* salt : {"b", "a", "", "b", "a", ""}) {
    calls.push_back(session.submit_prefill(std::span(prompt), {.salt = salt}));
  }
  std::vector<Branch> branches;
  for (PendingPrefill& call : calls) branches.push_back(call.get());
  for (std::size_t i = 0; i < branches.size(); ++i) {
    EXPECT_EQ(reuse_of(branches[i]), i < 3 ? Reuse(0, 60) : Reuse(60, 0));
  }
}

TEST(Reuse, WhatIsComposedOfABranchHasItsSalt) {
  Random random(11);
  const Tokens prompt = random.tokens(60, 256);
  const std::vector<Edit> edits = {{{20, 25}, {Piece::tokens(random.tokens(7, 256))}}};
  for (const auto mode : {ComposeParams::Mode::kComposed, ComposeParams::Mode::kExact}) {
    Session session(load("tinyllama"));
    const Branch branch = session.prefill(std::span(prompt), {.salt = "mine"});
    const Composed edited = session.edit(branch, edits, {.repair = {.first = 4}, .mode = mode});
    EXPECT_EQ(edited.report.kept, 20);
    EXPECT_EQ(edited.report.moved > 0, mode == ComposeParams::Mode::kComposed);
    const Tokens all = edited.branch.tokens();
    const auto shared = [&](const std::string& salt) {
      return session.prefill(std::span(all), {.salt = salt}).stats().prompt_shared;
    };
    EXPECT_EQ(shared(""), 0);
    EXPECT_EQ(shared("other"), 0);
    EXPECT_EQ(shared("mine"), mode == ComposeParams::Mode::kExact ? 62 : 31);
    EXPECT_EQ(session.settle(edited.branch).stats().prompt_shared, 62);
    const Composed replaced = session.edit(branch, std::vector<Edit>{{{0, 60}, edits[0].with}});
    const Tokens other = replaced.branch.tokens();
    EXPECT_EQ(session.prefill(std::span(other)).stats().prompt_shared, 0);
  }
}

TEST(Reuse, ThereIsNothingToSettleOfAnEmptyBranch) {
  Session session(load("tinyllama"));
  EXPECT_THROW(session.settle(Branch()), BranchEmpty);
  EXPECT_THROW(session.submit_settle(Branch()), BranchEmpty);
}

TEST(Reuse, WhatAnotherDidNotFinishIsComputedByWhoGoesOn) {
  Random random(7);
  const Engine engine = load("tinyllama");
  Session session(engine);
  Session small(engine, {.budget = {.tokens = 32}});
  const Tokens prompt = random.tokens(100, 256);
  PendingPrefill first = small.submit_prefill(std::span(prompt));
  PendingPrefill second = session.submit_prefill(std::span(prompt));
  const Branch cut = first.get();
  const Branch whole = second.get();
  EXPECT_EQ(cut.finish() == Finish::kBudget, cut.stats().tokens_computed < 100);
  EXPECT_EQ(whole.finish(), Finish::kRunning);
  // All tokens are computed once, whoever did it.
  EXPECT_EQ(cut.stats().tokens_computed + whole.stats().tokens_computed, 100);
  EXPECT_EQ(reuse_of(whole), Reuse(cut.stats().tokens_computed, whole.stats().tokens_computed));
}

TEST(Reuse, WhatWasEvictedIsToldApart) {
  Random random(8);
  const Engine engine = load("tinyllama", {.page_tokens = 8, .kv_tokens = 160});
  Session session(engine);
  const Tokens prompt = random.tokens(80, 256);
  Branch idle = session.prefill(std::span(prompt));
  EXPECT_EQ(idle.stats().tokens_regenerated, 0);
  {
    Branch large = session.prefill(std::span<const Token>(random.tokens(140, 256)));
    EXPECT_EQ(reuse_of(large), Reuse(0, 140));
  }
  session.decode(idle, greedy(1));
  const BranchStats stats = idle.stats();
  EXPECT_GT(stats.tokens_regenerated, 0);
  EXPECT_EQ(stats.prompt_shared, 0);
  EXPECT_EQ(session.stats().tokens_regenerated, stats.tokens_regenerated);
  EXPECT_EQ(stats.tokens_computed, 80 + stats.tokens_regenerated);
}

}  // namespace
}  // namespace dendrite
