// What decode parameters change about draws, beside temperature and filters: penalties, bans, least
// lengths, seeds, and the caller's own function; on the host and where the device samples.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::expect_same;
using test::load;
using test::logits_of;
using test::Random;
using test::SamplingBackend;
using test::Tokens;

class DrawRulesTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string device() {
    const std::string wanted = GetParam();
    return wanted == "sampling" && test::on_cuda() ? "cuda" : wanted;
  }
  static DecodeParams greedy(std::int64_t max_tokens) { return test::greedy(max_tokens); }
  /// What the prompt is followed by.
  Tokens likeliest(std::int64_t count) {
    Branch branch = root_.fork();
    return session_.decode(branch, greedy(count)).ids;
  }

  // (Its tokens are bytes.)
  Engine engine_ = load("qwen3", {}, device());
  Session session_{engine_, {.seed = 3}};
  Branch root_ = session_.prefill("A text: ");
};

INSTANTIATE_TEST_SUITE_P(Devices, DrawRulesTest, ::testing::Values("", "sampling"));

/// OpenAI's definition, over the tokens behind the prompt.
Token likeliest_with(std::vector<float> logits, std::span<const Token> generated, double presence,
                     double frequency) {
  for (std::size_t token = 0; token < logits.size(); ++token) {
    const auto count = std::ranges::count(generated, static_cast<Token>(token));
    if (count > 0) logits[token] -= static_cast<float>(presence + frequency * double(count));
  }
  return static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
}

TEST_P(DrawRulesTest, PenaltiesCountWhatTheBranchHasBehindItsPrompt) {
  DecodeParams params = greedy(6);
  params.presence_penalty = 0.5;
  params.frequency_penalty = -2;  // so that tokens come again
  Branch branch = root_.fork();
  branch.append(Tokens{'x'});
  session_.decode(branch, params);
  Branch fork = branch.fork();
  session_.decode(branch, params);  // goes on where the call before ended
  session_.decode(fork, params);
  EXPECT_EQ(fork.tokens(), branch.tokens());
  const Tokens all = branch.tokens();
  const auto prompt = static_cast<std::size_t>(branch.prompt_length());
  bool changed = false;
  for (std::size_t i = prompt + 1; i < all.size(); ++i) {
    Branch before = session_.prefill(std::span(all).first(i));
    const std::vector<float> logits = logits_of(before);
    const std::span<const Token> generated = std::span(all).subspan(prompt, i - prompt);
    EXPECT_EQ(all[i], likeliest_with(logits, generated, 0.5, -2)) << i;
    changed = changed || all[i] != likeliest_with(logits, {}, 0, 0);
  }
  EXPECT_TRUE(changed);
}

TEST_P(DrawRulesTest, PenaltiesDrawTheSameInDraftedSteps) {
  DecodeParams params{.max_tokens = 40, .temperature = 0.3, .ignore_eos = true};
  params.presence_penalty = 0.2;
  params.frequency_penalty = -0.3;  // texts that repeat themselves, so that drafts come true
  params.repetition_penalty = 0.9;
  params.logit_bias = {{'a', 40.F}, {'b', 40.F}, {'c', 40.F}, {'d', 40.F}};
  params.bad_word_ids = {{'a', 'b'}, {'c'}};
  params.slack = std::numeric_limits<double>::infinity();
  std::vector<Branch> plain = root_.fork(2);
  std::vector<Branch> drafted;
  for (Branch& branch : plain) drafted.push_back(branch.fork({.stream = branch.stream()}));
  const std::vector<Generation> expected = session_.decode(plain, params);
  params.speculate = Speculate::kSuffix;
  expect_same(session_.decode(drafted, params), expected);
  EXPECT_GT(session_.stats().tokens_accepted, 0);
}

TEST_P(DrawRulesTest, BadWordsAreNeverCompleted) {
  const Tokens plain = likeliest(3);
  DecodeParams params = greedy(3);
  params.bad_word_ids = {{plain[0], plain[1]}};
  Branch branch = root_.fork();
  Tokens got = session_.decode(branch, params).ids;
  EXPECT_EQ(got[0], plain[0]);
  EXPECT_NE(got[1], plain[1]);
  params.bad_word_ids = {{root_.last_token(), plain[0]}};  // begun by the prompt
  branch = root_.fork();
  EXPECT_NE(session_.decode(branch, params).ids[0], plain[0]);
  params.bad_word_ids = {{plain[0]}};
  branch = root_.fork();
  got = session_.decode(branch, params).ids;
  EXPECT_EQ(std::ranges::count(got, plain[0]), 0);
}

TEST_P(DrawRulesTest, BadWordsUnderAConstraint) {
  DecodeParams params{.max_tokens = 20, .temperature = 0};
  params.bad_words = {"ab"};
  for (const char* text : {"xab|xac", "x ab|x ac"}) {  // as it stands, and behind a space
    params.constraint = Constraint::regex(text);
    Branch branch = root_.fork();
    const Generation got = session_.decode(branch, params);
    EXPECT_TRUE(got.text.ends_with("ac")) << got.text;
    EXPECT_EQ(got.finish, Finish::kStop);
  }
  params.constraint = Constraint::regex("xab");  // where nothing else can follow
  Branch branch = root_.fork();
  const Generation got = session_.decode(branch, params);
  EXPECT_EQ(got.text, "xa");
  EXPECT_EQ(got.finish, Finish::kDeadEnd);
}

TEST_P(DrawRulesTest, NothingEndsBeforeMinTokens) {
  const Tokens plain = likeliest(1);
  DecodeParams params = greedy(12);
  params.stop_tokens = {plain[0]};
  Branch branch = root_.fork();
  EXPECT_EQ(session_.decode(branch, params).ids, plain);
  params.min_tokens = 5;
  branch = root_.fork();
  const Generation got = session_.decode(branch, params);
  EXPECT_GE(got.ids.size(), 5u);
  EXPECT_EQ(std::ranges::count(std::span(got.ids).first(5), plain[0]), 0);

  params = greedy(12);
  branch = root_.fork();
  const std::string text = session_.decode(branch, params).text;
  params.stop = {engine_.decode(plain)};
  branch = root_.fork();
  EXPECT_EQ(session_.decode(branch, params).text, "");
  params.min_tokens = 12;
  branch = root_.fork();
  EXPECT_EQ(session_.decode(branch, params).text, text);
}

TEST_P(DrawRulesTest, ConstraintsWinOverMinTokens) {
  DecodeParams params{.max_tokens = 20, .min_tokens = 4, .temperature = 1};
  params.constraint = Constraint::regex("a{2,9}");
  for (Branch& branch : root_.fork(8)) {
    const Generation got = session_.decode(branch, params);
    EXPECT_GE(got.text.size(), 4u);
    EXPECT_EQ(got.finish, Finish::kStop);
  }
  params.constraint = Constraint::regex("ab");
  Branch branch = root_.fork();
  const Generation got = session_.decode(branch, params);
  EXPECT_EQ(got.text, "ab");
  EXPECT_EQ(got.finish, Finish::kStop);
}

TEST_P(DrawRulesTest, ASeedOfTheCallReplacesTheSessions) {
  const auto drawn = [&](std::uint64_t session_seed, std::optional<std::uint64_t> seed) {
    Session session(engine_, {.seed = session_seed});
    Branch branch = session.prefill("A text: ", {.stream = 5});
    DecodeParams params{.max_tokens = 12, .temperature = 1, .ignore_eos = true};
    params.seed = seed;
    return session.decode(branch, params).ids;
  };
  EXPECT_EQ(drawn(1, 9), drawn(2, 9));
  EXPECT_EQ(drawn(1, 9), drawn(9, std::nullopt));
  EXPECT_NE(drawn(1, 9), drawn(1, 8));
}

TEST_P(DrawRulesTest, AFunctionSeesTheLogitsOfABatch) {
  std::vector<Branch> branches = root_.fork(3);
  for (Branch& branch : branches) branch.append(Tokens{'x'});
  Branch other = branches[0].fork();
  const std::vector<float> raw = logits_of(other);
  DecodeParams params = greedy(2);
  params.top_logprobs = 0;
  int calls = 0;
  params.on_logits = [&](const LogitsBatch& batch) {
    ASSERT_EQ(batch.rows.size(), 3u);
    ASSERT_EQ(batch.logits.size(), 3 * raw.size());
    for (std::size_t i = 0; i < 3; ++i) {
      const LogitsBatch::Row& row = batch.rows[i];
      EXPECT_EQ(row.index, i);
      EXPECT_EQ(row.branch, branches[i].id());
      EXPECT_EQ(row.ids.size(), static_cast<std::size_t>(calls));
      EXPECT_EQ(row.logits.data(), batch.logits.data() + i * raw.size());
      if (calls == 0) {
        EXPECT_TRUE(std::ranges::equal(row.logits, raw));
      }
      row.logits[40 + i] = 1e4f;
    }
    ++calls;
  };
  const std::vector<Generation> got = session_.decode(branches, params);
  EXPECT_EQ(calls, 2);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got[i].ids, Tokens(2, static_cast<Token>(40 + i)));
    Branch scored = root_.fork();
    scored.append(Tokens{'x'});
    // Log-probs are those of the model.
    EXPECT_EQ(got[i].logprobs[0].logprob, scored.score_tokens({{got[i].ids[0]}})[0].tokens[0]);
  }
}

TEST_P(DrawRulesTest, AFunctionOfLogitsAloneKeepsForkAndReplayAlike) {
  DecodeParams params{.max_tokens = 8, .temperature = 0.8, .ignore_eos = true};
  params.on_logits = [](const LogitsBatch& batch) {
    for (float& logit : batch.logits) logit = -std::abs(logit);
  };
  std::vector<Branch> branches = root_.fork(4);
  std::vector<Branch> alone;
  for (Branch& branch : branches) alone.push_back(branch.fork({.stream = branch.stream()}));
  const std::vector<Generation> together = session_.decode(branches, params);
  std::vector<Generation> one_by_one;
  for (Branch& branch : alone) one_by_one.push_back(session_.decode(branch, params));
  expect_same(one_by_one, together);
}

TEST_P(DrawRulesTest, WhatAFunctionThrowsComesOutOfTheCall) {
  DecodeParams params = greedy(8);
  int calls = 0;
  params.on_logits = [&](const LogitsBatch&) {
    if (++calls == 3) throw std::runtime_error("no more");
  };
  std::vector<Branch> branches = root_.fork(2);
  EXPECT_THROW(session_.decode(branches, params), std::runtime_error);
  EXPECT_EQ(calls, 3);
  for (const Branch& branch : branches) {
    EXPECT_EQ(branch.finish(), Finish::kCancelled);
    EXPECT_EQ(branch.length(), root_.length() + 2);
  }
  session_.decode(branches, greedy(2));  // they are free again
  params.on_logits = [&](const LogitsBatch&) { session_.prefill("x"); };
  EXPECT_THROW(session_.decode(branches, params), BranchBusy);
}

TEST_P(DrawRulesTest, WrongValuesAreRefused) {
  const auto error_with = [&](const auto& change) {
    DecodeParams params = greedy(2);
    change(params);
    Branch branch = root_.fork();
    return test::error_of([&] { session_.decode(branch, params); });
  };
  const auto expect = [&](const auto& change, const char* part) {
    const std::string error = error_with(change);
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  expect([](DecodeParams& p) { p.presence_penalty = NAN; }, "presence_penalty is nan");
  expect([](DecodeParams& p) { p.frequency_penalty = INFINITY; }, "frequency_penalty is inf");
  expect([](DecodeParams& p) { p.min_tokens = -1; }, "min_tokens is -1");
  expect([](DecodeParams& p) { p.bad_words = {""}; }, "a bad word is empty");
  expect([](DecodeParams& p) { p.bad_word_ids = {{}}; }, "bad_word_ids is an empty list");
  expect([](DecodeParams& p) { p.bad_word_ids = {{1, -1}}; }, "bad_word_ids id is -1");
}

/// One client's edits do not end the steps that a device begins early for all.
TEST(DrawRules, StepsBeginEarlyBesideEdits) {
  if (test::on_cuda()) GTEST_SKIP() << "counts the passes of a CPU";
  const Engine engine = load("tinyllama", {.prefix_index = false}, "sampling");
  Session session(engine, {.seed = 8});
  Branch root = session.prefill(Random(4).tokens(40, 256));
  std::vector<Branch> branches;
  for (Token i = 0; i < 6; ++i) {
    branches.push_back(root.fork());
    branches.back().append(Tokens{40 + i});
  }
  DecodeParams params{.max_tokens = 30, .temperature = 1, .ignore_eos = true};
  params.frequency_penalty = 0.5;
  params.logit_bias = {{7, 2.0f}};
  std::vector<Branch> step_by_step;
  for (const Branch& branch : branches) {
    step_by_step.push_back(root.fork({.stream = branch.stream()}));
    step_by_step.back().append(Tokens{branch.last_token()});
  }
  std::int64_t unread = 0;
  static_cast<SamplingBackend&>(*core_of(engine)->backend).on_pass = [&](std::int64_t rows) {
    unread += rows;
  };
  session.decode(branches, params);
  EXPECT_EQ(unread, 29 * 6);
  params.max_tokens = 1;
  for (int i = 0; i < 30; ++i) session.decode(step_by_step, params);
  for (std::size_t i = 0; i < branches.size(); ++i) {
    EXPECT_EQ(branches[i].tokens(), step_by_step[i].tokens()) << i;
  }
}

}  // namespace
}  // namespace dendrite
