#include "dendrite/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/engine_support.h"

namespace dendrite::test {
namespace {

// Random weights. llama2's tokenizer puts BOS before a text, dendrite-echo's nothing.
const std::string kText = "Once upon a time there was a tree, and it forked.";

/// -log-probs of `scored` behind `before`, the slow way.
double nats_of(const Engine& engine, const Tokens& before, const Tokens& scored) {
  Session session(engine);
  Branch root = session.prefill(std::span<const Token>(before));
  return -root.score_tokens({scored}).front().logprob;
}

Tokens part(const Tokens& tokens, std::size_t begin, std::size_t count) {
  const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(begin);
  return {from, from + static_cast<std::ptrdiff_t>(std::min(count, tokens.size() - begin))};
}

Perplexity measure(const Engine& engine, const TextSample& sample,
                   const PerplexityParams& params = {}) {
  return perplexity(engine, {&sample, 1}, params);
}

TEST(PerplexityOf, ATextIsItsScoreBehindBos) {
  const Engine engine = load("llama2");
  const Tokens tokens = engine.encode(kText, false);
  const Perplexity got = measure(engine, {.text = kText});
  EXPECT_EQ(got.tokens, std::ssize(tokens));
  EXPECT_EQ(got.windows, 1);
  EXPECT_NEAR(got.nats, nats_of(engine, engine.encode("", true), tokens), 1e-4);
  EXPECT_NEAR(got.value(), std::exp(got.nats / static_cast<double>(got.tokens)), 1e-12);
  EXPECT_GT(got.error(), 0);
  EXPECT_TRUE(got.likeliest.empty());
}

TEST(PerplexityOf, WindowsBeginAnew) {
  const Engine engine = load("llama2");
  const Tokens tokens = engine.encode(kText, false);
  const Tokens bos = engine.encode("", true);
  ASSERT_EQ(bos.size(), 1U);
  const Perplexity got = measure(engine, {.text = kText}, {.window = 17});
  double expected = 0;
  for (std::size_t begin = 0; begin < tokens.size(); begin += 16) {
    expected += nats_of(engine, bos, part(tokens, begin, 16));
  }
  EXPECT_EQ(got.window, 17);
  EXPECT_EQ(got.windows, (std::ssize(tokens) + 15) / 16);
  EXPECT_EQ(got.tokens, std::ssize(tokens));
  EXPECT_NEAR(got.nats, expected, 1e-4);
}

TEST(PerplexityOf, APromptIsGivenAndNotScored) {
  const Engine engine = load("llama2");
  const std::string prompt = kText.substr(0, 20);
  const Tokens before = engine.encode(prompt, true);
  const Tokens scored = engine.encode_after(before, kText.substr(20));
  const Perplexity got = measure(engine, {.text = kText.substr(20), .prompt = prompt});
  EXPECT_EQ(got.tokens, std::ssize(scored));
  EXPECT_NEAR(got.nats, nats_of(engine, before, scored), 1e-4);
  // Cut, the windows that are prompt alone are left out.
  const Perplexity cut =
      measure(engine, {.text = kText.substr(20), .prompt = prompt}, {.window = 9});
  EXPECT_EQ(cut.tokens, std::ssize(scored));
  EXPECT_LT(cut.windows, (std::ssize(before) + std::ssize(scored)) / 8 + 1);
}

TEST(PerplexityOf, WithoutBosAWindowsFirstTokenIsNotScored) {
  const Engine engine = load("dendrite-echo");
  ASSERT_TRUE(engine.encode("", true).empty());
  const Tokens tokens = engine.encode(kText, false);
  const Perplexity got = measure(engine, {.text = kText});
  EXPECT_EQ(got.tokens, std::ssize(tokens) - 1);
  EXPECT_NEAR(got.nats, nats_of(engine, part(tokens, 0, 1), part(tokens, 1, tokens.size())), 1e-4);
}

TEST(PerplexityOf, TheLikeliestTokensAreThoseOfGreedyDecoding) {
  const Engine engine = load("llama2");
  Session session(engine);
  Branch greedy = session.prefill(engine.decode(engine.encode("", true)));
  const Perplexity got = measure(engine, {.text = kText}, {.likeliest = true});
  ASSERT_EQ(std::ssize(got.likeliest), got.tokens);
  const Tokens tokens = engine.encode(kText, false);
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{13}}) {
    Tokens before = engine.encode("", true);
    before.insert(before.end(), tokens.begin(),
                  tokens.begin() + static_cast<std::ptrdiff_t>(length));
    Branch branch = session.prefill(std::span<const Token>(before));
    EXPECT_EQ(session.decode_step(branch, {.temperature = 0, .ignore_eos = true}),
              got.likeliest[length]);
  }
  EXPECT_EQ(top1_agreement(got, got), 1);
  Perplexity other = got;
  other.likeliest[3] += 1;
  EXPECT_NEAR(top1_agreement(got, other), 1 - 1.0 / static_cast<double>(got.tokens), 1e-12);
  other.likeliest.pop_back();
  EXPECT_THROW(top1_agreement(got, other), Error);
}

TEST(PerplexityOf, SamplesDependNeitherOnCompanyNorOnThePool) {
  const Engine wide = load("llama2");
  const Engine narrow = load("llama2", {.kv_tokens = 128});
  std::vector<TextSample> samples;
  double alone = 0;
  for (std::size_t i = 0; i < 12; ++i) {
    samples.push_back({.text = kText.substr(i), .prompt = kText.substr(0, i)});
    alone += measure(wide, samples.back()).nats;
  }
  const Perplexity together = perplexity(wide, samples);
  EXPECT_NEAR(together.nats, alone, 1e-9 * alone);
  EXPECT_EQ(perplexity(narrow, samples).nats, together.nats);
  EXPECT_EQ(perplexity(narrow, samples).squares, together.squares);
}

TEST(PerplexityOf, EndsWhereItIsTold) {
  const Engine engine = load("llama2");
  const std::vector<TextSample> samples(10, {.text = kText});
  const auto one = measure(engine, samples.front()).tokens;
  std::vector<std::int64_t> seen;
  std::int64_t of = 0;
  const Perplexity some =
      perplexity(engine, samples, {.tokens = one + 1, .on_progress = [&](auto done, auto all) {
                                     seen.push_back(done);
                                     of = all;
                                   }});
  EXPECT_EQ(some.tokens, 2 * one);
  EXPECT_EQ(of, 2 * one);
  EXPECT_EQ(seen.back(), 2 * one);
  std::stop_source stop;
  stop.request_stop();
  const Perplexity none = perplexity(engine, samples, {.cancel = stop.get_token()});
  EXPECT_TRUE(none.cancelled);
  EXPECT_EQ(none.tokens, 0);
  const Perplexity polled = perplexity(engine, samples, {.poll = [] { return false; }});
  EXPECT_TRUE(polled.cancelled);
  EXPECT_EQ(polled.tokens, 0);
  EXPECT_FALSE(perplexity(engine, samples, {.poll = [] { return true; }}).cancelled);
}

TEST(PerplexityOf, WhatCannotBeScoredIsAnError) {
  const Engine engine = load("llama2");
  EXPECT_THROW(perplexity(engine, {}), Error);
  EXPECT_THROW(measure(engine, {.text = ""}), Error);
  EXPECT_THROW(measure(engine, {.text = kText}, {.window = 1}), Error);
}

}  // namespace
}  // namespace dendrite::test
