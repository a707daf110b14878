// Random streams: what shifts them, and what does not.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::load;
using test::Random;
using test::Tokens;

const Tokens kPrompt = {1, 20, 30, 40, 50, 60, 70, 80, 90};
const DecodeParams kSampled{.max_tokens = 12, .temperature = 1.5, .ignore_eos = true};

using Extra = std::function<void(Session&, Branch&)>;
void nothing(Session&, Branch&) {}

/// What a program samples that makes each kind of branch, and does something else in between.
std::vector<Tokens> sample(Session& session, const Extra& extra = nothing) {
  Branch none;
  extra(session, none);
  std::vector<Branch> branches;
  branches.push_back(session.prefill(std::span(kPrompt)));
  extra(session, branches[0]);
  for (Branch& fork : branches[0].fork(2)) branches.push_back(std::move(fork));
  extra(session, branches[1]);
  branches.push_back(branches[1].at(5));
  extra(session, branches[0]);
  auto children = session.expand(std::span(branches).first(1), {.top = 2});
  extra(session, branches[0]);
  for (Branch& child : children[0]) branches.push_back(child.fork());
  for (Branch& child : children[0]) branches.push_back(std::move(child));
  extra(session, branches[4]);
  std::vector<Tokens> out;
  for (const Generation& generation : session.decode(branches, kSampled)) {
    out.push_back(generation.ids);
  }
  return out;
}

class StreamsTest : public ::testing::Test {
 protected:
  /// What is sampled in a session of its own.
  std::vector<Tokens> sample_fresh(const Extra& extra = nothing) {
    Session session(engine, {.seed = 3});
    return sample(session, extra);
  }

  Engine engine = load("llama2");
  std::vector<Tokens> plain = sample_fresh();
};

TEST_F(StreamsTest, BranchesOfOneProgramDrawDifferently) {
  const std::set<Tokens> distinct(plain.begin(), plain.end());
  EXPECT_EQ(distinct.size(), plain.size());
}

TEST_F(StreamsTest, DiscardedPromptsOfOtherTokensLeaveNoTrace) {
  Random random(5);
  const auto prompts = [&](Session& session, Branch&) {
    Branch other = session.prefill(random.tokens(11, engine.info().vocab));
    session.decode(other, kSampled);
    session.prefill(std::span(kPrompt).first(5));
    session.prefill(std::span(kPrompt), {.stream = 17});
  };
  EXPECT_EQ(sample_fresh(prompts), plain);
}

TEST_F(StreamsTest, WhatIsOnlyLookedAtLeavesNoTrace) {
  const auto look = [](Session& session, Branch& branch) {
    if (!branch.valid()) return;
    branch.score_tokens({{1, 2}, {1, 3}, {4}});
    session.next_tokens(std::span(&branch, 1), {.top = 5});
    std::vector<Branch> children =
        std::move(session.expand(std::span(&branch, 1), {.top = 5}).front());
    session.decode(children, kSampled);
    const std::vector<Branch> grandchildren = children[0].fork(2);
  };
  EXPECT_EQ(sample_fresh(look), plain);
}

TEST_F(StreamsTest, ForksWithGivenStreamsLeaveNoTrace) {
  const auto twins = [](Session& session, Branch& branch) {
    if (!branch.valid()) return;
    Branch twin = branch.fork({.stream = branch.stream()});
    session.decode(twin, kSampled);
    const std::vector<Branch> forks = twin.fork(3);
    Branch past = branch.at(3, {.stream = 8});
    EXPECT_EQ(past.stream(), 8u);
    session.decode(past, kSampled);
  };
  EXPECT_EQ(sample_fresh(twins), plain);
}

TEST_F(StreamsTest, NeitherIndexNorPoolNorOtherSessionsShiftThem) {
  for (const EngineOptions& options :
       {EngineOptions{.prefix_index = false}, EngineOptions{.page_tokens = 8, .kv_tokens = 160}}) {
    const Engine other = load("llama2", options);
    Session before(other, {.seed = 3});
    Branch idle = before.prefill(Random(9).tokens(100, other.info().vocab));
    sample(before);
    sample(before);
    Session session(other, {.seed = 3});
    EXPECT_EQ(sample(session), plain);
    EXPECT_EQ(sample(session, [&](Session&, Branch&) { idle.score_tokens({{1}}); }).size(),
              plain.size());
    if (options.kv_tokens == 160) {
      EXPECT_GT(session.stats().evictions, 0);
    }
  }
}

TEST_F(StreamsTest, WhatIsAskedForAgainDrawsAfresh) {
  Session session(engine, {.seed = 3});
  EXPECT_EQ(sample(session), plain);
  const std::vector<Tokens> again = sample(session);  // the same prompt
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NE(again[i], plain[i]) << i;

  Branch root = session.prefill(std::span(kPrompt));
  std::set<Tokens> drawn;
  for (int i = 0; i < 4; ++i) {
    Branch fork = root.fork();
    drawn.insert(session.decode(fork, kSampled).ids);
    Branch past = root.at(6);
    drawn.insert(session.decode(past, kSampled).ids);
  }
  EXPECT_EQ(drawn.size(), 8u);
}

TEST_F(StreamsTest, AChildIsTheSameWheneverItIsAskedFor) {
  Session session(engine);
  Branch root = session.prefill(std::span(kPrompt));
  const auto few = session.expand(std::span(&root, 1), {.top = 2});
  root.fork();
  const auto many = session.expand(std::span(&root, 1), {.top = 6});
  EXPECT_EQ(few[0][1].stream(), many[0][1].stream());
  std::set<std::uint64_t> streams{root.stream(), root.fork().stream()};
  for (const Branch& child : many[0]) streams.insert(child.stream());
  Branch other = root.fork();
  const auto others = session.expand(std::span(&other, 1), {.top = 6});
  for (const Branch& child : others[0]) streams.insert(child.stream());
  EXPECT_EQ(streams.size(), 14u);
}

TEST_F(StreamsTest, SessionsOfOneSeedAreToldApartByTheirStream) {
  Session same(engine, {.seed = 3, .stream = 0});
  Session other(engine, {.seed = 3, .stream = 1});
  EXPECT_EQ(sample(same), plain);
  EXPECT_NE(sample(other), plain);
}

TEST_F(StreamsTest, ATwinDrawsWhatTheBranchWouldAndHasItsForks) {
  Session session(engine);
  Branch root = session.prefill(std::span(kPrompt));
  Branch twin = root.fork({.stream = root.stream()});
  EXPECT_EQ(twin.fork().stream(), root.fork().stream());
  EXPECT_EQ(session.decode(twin, kSampled).ids, session.decode(root, kSampled).ids);
}

TEST_F(StreamsTest, ChildrenRefuseWhatIsNoToken) {
  Session session(engine);
  Branch root = session.prefill(std::span(kPrompt));
  const auto outside = static_cast<Token>(engine.info().vocab);
  const std::vector<TokenLogprob> tokens[] = {{{1, -1}, {outside, -1}}};
  EXPECT_ERROR(session.children(std::span(&root, 1), tokens), "is outside the vocabulary");
  EXPECT_ERROR(session.children(std::span<const Branch>(), tokens),
               "there are 1 lists of tokens; expected 0");
  EXPECT_EQ(session.stats().branches_live, 1);
}

}  // namespace
}  // namespace dendrite
