// More branches than the pages are for: who takes part in steps.
#include "engine/loop/admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::Random;
using test::Tokens;

TEST(LengthEstimate, ExpectsTheMostUntilOneHasEnded) {
  LengthEstimate lengths;
  EXPECT_EQ(lengths.rest(0, 256), 256);
  lengths.record(20);
  EXPECT_EQ(lengths.rest(0, 256), 40);  // the mean, and twice a deviation of half of it
  EXPECT_EQ(lengths.rest(0, 30), 30);
  for (int i = 0; i < 64; ++i) lengths.record(20);
  EXPECT_EQ(lengths.rest(0, 256), 21);
}

TEST(LengthEstimate, ExpectsALittleMoreOfOneThatGoesOnForLonger) {
  LengthEstimate lengths;
  for (int i = 0; i < 64; ++i) lengths.record(20);
  EXPECT_EQ(lengths.rest(100, 156), 16);
  EXPECT_EQ(lengths.rest(100, 3), 3);
}

/// Prompts of 40 tokens, 24 tokens each: 4 pages. The pool has room for `fit` of them.
struct Work {
  static constexpr std::int64_t kPrompt = 40;
  static constexpr std::int64_t kAnswer = 24;

  explicit Work(int fit)
      : engine(load("tinyllama", {.kv_tokens = 64 * fit, .prefix_index = false})) {}

  Tokens prompt(int i) const { return Random(static_cast<std::uint32_t>(i)).tokens(kPrompt, 256); }
  std::vector<Branch> prompts(Session& session, int count) const {
    std::vector<Branch> out;
    for (int i = 0; i < count; ++i)
      out.push_back(session.prefill(std::span<const Token>(prompt(i))));
    return out;
  }
  std::int64_t steps() const { return engine.stats().steps; }

  Engine engine;
};

DecodeParams whole() {
  DecodeParams params = greedy(Work::kAnswer);
  params.ignore_eos = true;
  return params;
}

std::vector<Tokens> ids_of(const std::vector<Generation>& generations) {
  std::vector<Tokens> out;
  for (const Generation& one : generations) out.push_back(one.ids);
  return out;
}

TEST(Admission, MoreThanThePoolHoldsTakesAsManyStepsAsBatchesThatFit) {
  constexpr int kFit = 16;
  constexpr int kCount = 96;
  const Work work(kFit);
  Session session(work.engine);
  std::vector<Branch> branches = work.prompts(session, kCount);
  const std::int64_t before = work.steps();
  const std::vector<Generation> got = session.decode(branches, whole());
  const std::int64_t steps = work.steps() - before;
  EXPECT_LE(steps, kCount / kFit * (Work::kAnswer + 1) * 12 / 10);
  EXPECT_EQ(session.stats().preemptions, 0);

  const Work roomy(kCount + 1);
  Session other(roomy.engine);
  std::vector<Branch> same = roomy.prompts(other, kCount);
  EXPECT_EQ(ids_of(got), ids_of(other.decode(same, whole())));
  for (const Generation& one : got) EXPECT_EQ(one.finish, Finish::kLength);
}

TEST(Admission, WhoEndsSoonLetsMoreInThanTheirLimitSays) {
  constexpr int kFit = 16;
  const Work roomy(100);
  const Work work(kFit);  // one of 1000 tokens takes all of it
  Session whole_texts(roomy.engine);
  Session session(work.engine);
  std::vector<PendingDecode> answers;
  std::int64_t tokens = 0;
  for (int i = 0; i < 64; ++i) {
    // It ends with the first token that it says for the first time behind its 16th.
    Branch known = whole_texts.prefill(std::span<const Token>(work.prompt(i)));
    const Tokens ids = whole_texts.decode(known, greedy(40)).ids;
    std::size_t end = 16;
    while (end < ids.size() &&
           std::find(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(end), ids[end]) !=
               ids.begin() + static_cast<std::ptrdiff_t>(end)) {
      ++end;
    }
    if (end == ids.size()) continue;
    DecodeParams params = greedy(1000);
    params.ignore_eos = true;
    params.stop_tokens = {ids[end]};
    tokens += static_cast<std::int64_t>(end) + 1;
    answers.push_back(
        session.submit_decode(session.prefill(std::span<const Token>(work.prompt(i))), params));
  }
  const std::int64_t before = work.steps();
  for (PendingDecode& answer : answers) {
    EXPECT_EQ(answer.get().front().finish, Finish::kStop);
    answer.release();
  }
  ASSERT_GT(answers.size(), 20U);
  EXPECT_LT(work.steps() - before, tokens / 3);  // one after the other: as many as tokens
}

TEST(Admission, CallsOfManyPromptsGoTheSameWay) {
  constexpr int kFit = 16;
  constexpr int kCount = 96;
  const Work work(kFit);
  Session session(work.engine);
  std::vector<PendingPrefill> prompts;
  for (int i = 0; i < kCount; ++i) prompts.push_back(session.submit_prefill(work.prompt(i)));
  std::vector<Branch> branches;
  std::vector<PendingDecode> answers;
  for (PendingPrefill& prompt : prompts) {
    std::vector<Branch> one;
    one.push_back(prompt.get());
    answers.push_back(session.submit_decode(std::move(one), whole()));
  }
  for (PendingDecode& answer : answers) {
    EXPECT_EQ(answer.get().front().finish, Finish::kLength);
  }
  EXPECT_LE(work.steps(), kCount / kFit * (Work::kAnswer + 4) * 12 / 10);
}

TEST(Admission, AHigherPriorityComesInAtOnce) {
  constexpr int kFit = 4;
  constexpr int kCount = 12;
  const Work work(kFit);
  Session session(work.engine);
  std::vector<Branch> branches = work.prompts(session, kCount);
  branches.back().set_priority(1);
  std::vector<bool> has_token;  // in each step
  DecodeParams params = whole();
  params.on_step = [&](std::span<const TokenEvent> events) {
    has_token.push_back(std::ranges::any_of(
        events, [&](const TokenEvent& event) { return event.index == branches.size() - 1; }));
    return true;
  };
  session.decode(branches, params);
  for (std::size_t i = 0; i < Work::kAnswer; ++i) EXPECT_TRUE(has_token[i]) << i;
}

TEST(Admission, OneThatNeverFitsEndsWithBudgetAndTheOthersGoOn) {
  const Work work(2);
  Session session(work.engine);
  std::vector<Branch> branches = work.prompts(session, 6);
  DecodeParams params = whole();
  params.max_tokens = 200;  // 240 tokens in a pool of 128
  for (const Generation& one : session.decode(branches, params)) {
    EXPECT_EQ(one.finish, Finish::kBudget);
    EXPECT_GE(one.ids.size(), 80U);
  }
}

}  // namespace
}  // namespace dendrite
