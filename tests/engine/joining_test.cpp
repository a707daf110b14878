// Calls of all sessions and threads share steps: each gets what it would get alone, and none waits
// for another to end.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <latch>
#include <thread>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::expect_same;
using test::greedy;
using test::load;
using test::Random;
using test::Tokens;

Tokens prompt_of(std::uint32_t seed, std::int64_t count = 20) {
  return Random(seed).tokens(count, 256);
}

/// Parameters that no two of them share.
DecodeParams params_of(std::uint32_t i, std::int64_t max_tokens) {
  DecodeParams params{.max_tokens = max_tokens, .temperature = 0.4 + 0.3 * i, .ignore_eos = true};
  if (i % 2 == 1) params.top_k = 5 + i;
  if (i % 3 == 1) params.repetition_penalty = 1.5;
  if (i % 3 == 2) params.logit_bias = {{static_cast<Token>(i), 4.0F}};
  params.top_logprobs = static_cast<int>(i) % 4 - 1;
  return params;
}

/// Sessions of one engine with a branch each.
struct Crowd {
  explicit Crowd(std::uint32_t count, EngineOptions options = {.prefix_index = false})
      : engine(load("tinyllama", std::move(options))) {
    for (std::uint32_t i = 0; i < count; ++i) {
      sessions.emplace_back(engine, SessionOptions{.seed = i});
      branches.push_back(sessions.back().prefill(prompt_of(i)));
    }
    steps = engine.stats().steps;
  }
  std::int64_t steps_since() const { return engine.stats().steps - steps; }

  Engine engine;
  std::vector<Session> sessions;
  std::vector<Branch> branches;
  std::int64_t steps = 0;
};

/// What branch `i` of a Crowd gives on an engine of its own.
std::vector<Generation> alone(std::uint32_t i, const DecodeParams& params) {
  Session session(load("tinyllama", {.prefix_index = false}), {.seed = i});
  Branch branch = session.prefill(prompt_of(i));
  return session.decode(std::span(&branch, 1), params);
}

TEST(Joining, DecodesWithOtherParametersShareStepsAndGiveWhatTheyGiveAlone) {
  Crowd crowd(6);
  std::vector<PendingDecode> calls;
  for (std::uint32_t i = 0; i < 6; ++i) {
    calls.push_back(
        crowd.sessions[i].submit_decode(std::move(crowd.branches[i]), params_of(i, 20 + i)));
  }
  for (std::uint32_t i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    expect_same(calls[i].get(), alone(i, params_of(i, 20 + i)));
  }
  EXPECT_LE(crowd.steps_since(), 20 + 5 + 1);
  EXPECT_GE(crowd.engine.stats().largest_batch_rows, 6);
}

TEST(Joining, DecodesOfThreadsShareSteps) {
  constexpr std::int64_t kTokens = 300;
  Crowd crowd(6);
  std::barrier begin(6);
  std::vector<std::vector<Generation>> got(6);
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      begin.arrive_and_wait();
      got[i] = crowd.sessions[i].decode(std::span(&crowd.branches[i], 1), params_of(i, kTokens));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::uint32_t i = 0; i < 6; ++i) expect_same(got[i], alone(i, params_of(i, kTokens)));
  EXPECT_LT(crowd.steps_since(), 4 * kTokens);  // one after the other it is six times
  EXPECT_GE(crowd.engine.stats().largest_batch_rows, 2);
}

TEST(Joining, AShortCallEndsLongBeforeALongOne) {
  Crowd crowd(2);
  PendingDecode longer = crowd.sessions[0].submit_decode(std::move(crowd.branches[0]), greedy(400));
  PendingDecode shorter = crowd.sessions[1].submit_decode(std::move(crowd.branches[1]), greedy(5));
  EXPECT_EQ(shorter.get().front().ids.size(), 5u);
  EXPECT_FALSE(longer.done());
  EXPECT_LE(longer.take().size(), 7u);
  EXPECT_EQ(longer.get().front().ids.size(), 400u);
}

TEST(Joining, ACallBeginsAndEndsWhileTheCallbackOfAnotherRuns) {
  Crowd crowd(2);
  std::latch begun(1);
  std::latch over(1);
  std::int64_t told = 0;
  std::thread slow([&] {
    DecodeParams params = greedy(30);
    params.on_token = [&](const TokenEvent&) {
      if (++told != 3) return;
      begun.count_down();
      over.wait();
    };
    crowd.sessions[0].decode(crowd.branches[0], params);
  });
  begun.wait();
  const std::vector<Generation> got =
      crowd.sessions[1].decode(std::span(&crowd.branches[1], 1), params_of(1, 40));
  EXPECT_EQ(told, 3);
  over.count_down();
  slow.join();
  EXPECT_EQ(told, 30);
  expect_same(got, alone(1, params_of(1, 40)));
}

TEST(Joining, PrefillScoreExpandAndDecodeShareSteps) {
  Crowd crowd(3);
  const std::vector<Tokens> continuations{{1, 2, 3}, {1, 2, 4}, {7}};
  for (Branch& branch : crowd.branches) branch.append(Tokens{9});
  const auto expected_scores = crowd.branches[1].fork().score_tokens(continuations);
  const std::int64_t before = crowd.engine.stats().steps;
  PendingPrefill prefill = crowd.sessions[0].submit_prefill(prompt_of(9, 50));
  PendingScore score =
      crowd.sessions[1].submit_score_tokens(std::span(&crowd.branches[1], 1), continuations);
  PendingDecode decode = crowd.sessions[0].submit_decode(crowd.branches[0].fork(), greedy(2));
  const auto children = crowd.sessions[2].expand(std::span(&crowd.branches[2], 1), {.top = 3});
  EXPECT_EQ(children.front().size(), 3u);
  EXPECT_EQ(prefill.get().length(), 50);
  const auto got_scores = score.get();
  EXPECT_EQ(decode.get().front().ids.size(), 2u);
  ASSERT_EQ(got_scores.size(), 1u);
  for (std::size_t i = 0; i < continuations.size(); ++i) {
    EXPECT_EQ(got_scores[0][i].tokens, expected_scores[i].tokens);
  }
  EXPECT_LE(crowd.engine.stats().steps - before, 3);
  EXPECT_GE(crowd.engine.stats().largest_batch_rows, 50 + 1 + 1 + 1);
}

TEST(Joining, CallsOfAllKindsFromThreadsGiveWhatTheyGiveAlone) {
  const Engine quiet = load("tinyllama", {.prefix_index = false});
  const std::vector<Tokens> continuations{{1, 2, 3}, {1, 2, 4}, {7}};
  Session reference(quiet);
  Branch root = reference.prefill(prompt_of(3, 40));
  const std::vector<Score> scores = root.score_tokens(continuations);
  const auto likeliest = reference.next_tokens(std::span(&root, 1), {.top = 5}).front();
  const Tokens decoded = reference.decode(root, greedy(9)).ids;

  const Engine engine = load("tinyllama", {.threads = 2});
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 5; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < test::scaled(30); ++i) {
        Session session(engine, {.seed = t});
        Branch branch = session.prefill(prompt_of(3, 40));
        const std::vector<Score> got = branch.score_tokens(continuations);
        for (std::size_t c = 0; c < got.size(); ++c) {
          if (got[c].tokens != scores[c].tokens) ++wrong;
        }
        const auto next = session.next_tokens(std::span(&branch, 1), {.top = 5}).front();
        if (!std::ranges::equal(next, likeliest, {}, &TokenLogprob::logprob,
                                &TokenLogprob::logprob)) {
          ++wrong;
        }
        if (session.decode(branch, greedy(9)).ids != decoded) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  test::expect_all_pages_free(engine);
}

TEST(Joining, EqualPromptsThatArriveTogetherAreComputedOnce) {
  const Engine engine = load("tinyllama");
  const Tokens prompt = prompt_of(4, 60);
  std::vector<Session> sessions;
  std::vector<PendingPrefill> calls;
  for (std::uint64_t i = 0; i < 4; ++i) {
    sessions.emplace_back(engine, SessionOptions{.seed = i});
    calls.push_back(sessions.back().submit_prefill(prompt));
  }
  std::vector<Branch> branches;
  for (PendingPrefill& call : calls) branches.push_back(call.get());
  std::int64_t computed = 0;
  for (const Session& session : sessions) computed += session.stats().tokens_computed;
  EXPECT_EQ(computed, 60);
  EXPECT_EQ(engine.stats().rows, 60);
  const Engine quiet = load("tinyllama", {.prefix_index = false});
  const test::Bits expected = test::replay(quiet, prompt);
  for (Branch& branch : branches) EXPECT_TRUE(test::same_bits(test::bits_of(branch), expected));
}

TEST(Joining, SubmittedPromptsAreLeftToTheIndexWhenTheyAreDropped) {
  const Engine engine = load("tinyllama");
  Session session(engine);
  const Tokens prompt = prompt_of(4, 60);
  { PendingPrefill call = session.submit_prefill(prompt); }
  EXPECT_FALSE(engine.step());
  EXPECT_EQ(session.stats().branches_live, 0);
  EXPECT_EQ(session.prefill(prompt).length(), 60);
  test::expect_all_pages_free(engine);
}

/// Rows by weight where they are few.
struct Shares {
  Shares(std::int64_t rows, const std::vector<double>& weights, int lanes) {
    for (const double weight : weights) {
      sessions.emplace_back(engine, SessionOptions{.seed = sessions.size(), .weight = weight});
      Branch root = sessions.back().prefill(prompt_of(static_cast<std::uint32_t>(sessions.size())));
      roots.push_back(std::move(root));
    }
    core_of(engine)->step_rows = rows;
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      calls.push_back(sessions[i].submit_decode(roots[i].fork(lanes), greedy(200)));
    }
  }
  std::vector<std::int64_t> generated() const {
    std::vector<std::int64_t> out;
    for (const Session& session : sessions) out.push_back(session.stats().tokens_generated);
    return out;
  }

  Engine engine = load("tinyllama", {.prefix_index = false});
  std::vector<Session> sessions;
  std::vector<Branch> roots;
  std::vector<PendingDecode> calls;
};

TEST(Joining, WeightsShareTheRowsOfASmallStep) {
  constexpr std::int64_t kRows = 8;
  constexpr std::int64_t kSteps = 60;
  Shares shares(kRows, {1, 3}, 16);
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    ASSERT_TRUE(shares.engine.step());
    const std::vector<std::int64_t> now = shares.generated();
    // floor(R * w / W) rows a step; a device may tell the tokens of a step in the next one.
    EXPECT_GE(now[0], (step - 2) * (kRows * 1 / 4)) << step;
    EXPECT_GE(now[1], (step - 2) * (kRows * 3 / 4)) << step;
  }
  const std::vector<std::int64_t> end = shares.generated();
  EXPECT_NEAR(static_cast<double>(end[1]) / static_cast<double>(end[0]), 3.0, 0.3);
}

TEST(Joining, RowsThatOneCannotUseAreForTheOthers) {
  Shares shares(8, {1, 3}, 16);
  shares.calls[1].cancel();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(shares.engine.step());
  EXPECT_GE(shares.generated()[0], 8 * 8);
}

TEST(Joining, NobodyStarvesWhereThereAreMoreSessionsThanRows) {
  constexpr std::int64_t kRows = 2;
  const std::vector<double> weights{1, 1, 2, 4, 1};
  constexpr double kTotal = 9;
  Shares shares(kRows, weights, 6);
  std::vector<std::int64_t> last(weights.size(), 0);  // the step in which it last got a row
  std::vector<std::int64_t> known(weights.size(), 0);
  for (std::int64_t step = 1; step <= 100; ++step) {
    ASSERT_TRUE(shares.engine.step());
    const std::vector<std::int64_t> now = shares.generated();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const auto most =
          static_cast<std::int64_t>(std::ceil(kTotal / weights[i] / static_cast<double>(kRows))) +
          1;
      if (now[i] > known[i]) last[i] = step;
      EXPECT_LE(step - last[i], most) << "session " << i << " of weight " << weights[i];
    }
    known = now;
  }
}

}  // namespace
}  // namespace dendrite
