// Scoring and expanding: distributions read without changing the branch.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::joined;
using test::load;
using test::logits_of;
using test::Random;
using test::Tokens;

double log_sum_exp(const std::vector<float>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float value : logits) sum += std::exp(value - max);
  return max + std::log(sum);
}

/// The log-probs of `continuation` token by token, each from a prefill of its own.
std::vector<double> one_by_one(const Engine& alone, Tokens prompt, const Tokens& continuation) {
  std::vector<double> out;
  for (const Token token : continuation) {
    Session session(alone);
    Branch branch = session.prefill(std::span(prompt));
    const std::vector<float> logits = logits_of(branch);
    out.push_back(logits[static_cast<std::size_t>(token)] - log_sum_exp(logits));
    prompt.push_back(token);
  }
  return out;
}

TEST(Score, OfATrieIsThatOfEachContinuationAlone) {
  Random random(2);
  const Engine alone = load("tinyllama", {.prefix_index = false});
  Session session(load("tinyllama"));
  const Tokens prompt = random.tokens(37, 256);
  Branch branch = session.prefill(std::span(prompt));
  const Tokens stem = random.tokens(20, 256);
  const std::vector<Tokens> continuations{
      stem,
      joined(stem, random.tokens(3, 256)),
      Tokens(stem.begin(), stem.begin() + 7),
      joined(Tokens(stem.begin(), stem.begin() + 7), random.tokens(5, 256)),
      {stem[0]},
      random.tokens(1, 256),
      stem,  // the same again
      random.tokens(40, 256),
  };
  const std::int64_t before = session.stats().tokens_computed;
  const std::vector<Score> scores = branch.score_tokens(continuations);
  // Shared beginnings once, last tokens not at all: 20 + 2 + 4 + 39, and not the sum of all
  // lengths.
  EXPECT_EQ(session.stats().tokens_computed - before, 20 + 2 + 4 + 39);
  ASSERT_EQ(scores.size(), continuations.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const std::vector<double> expected = one_by_one(alone, prompt, continuations[i]);
    ASSERT_EQ(scores[i].tokens.size(), expected.size());
    double sum = 0;
    for (std::size_t j = 0; j < expected.size(); ++j) {
      EXPECT_NEAR(scores[i].tokens[j], expected[j], 1e-5)
          << "continuation " << i << ", token " << j;
      sum += scores[i].tokens[j];
    }
    EXPECT_NEAR(scores[i].logprob, sum, 1e-12);
  }
  EXPECT_EQ(scores[0].tokens, scores[6].tokens);
}

/// Continuations that leave the greedy path at each of its tokens, and the path itself.
std::vector<Tokens> around(const Tokens& path, Token vocab) {
  std::vector<Tokens> out{path};
  for (std::size_t i = 0; i < path.size(); ++i) {
    out.emplace_back(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    out.push_back(path);
    out.back()[i] = (path[i] + 1) % vocab;
  }
  return out;
}

TEST(Score, TellsWhatGreedyDecodingWouldGenerate) {
  for (const Engine& engine : {load("tinyllama"), test::load_sampling("tinyllama")}) {
    Session session(engine);
    for (std::uint32_t seed = 0; seed < 8; ++seed) {
      Branch branch = session.prefill(Random(seed).tokens(17, 256));
      Branch walker = branch.fork();
      const Tokens path = session.decode(walker, greedy(5)).ids;
      const std::vector<Tokens> continuations = around(path, 256);
      const std::vector<Score> scores = branch.score_tokens(continuations);
      for (std::size_t i = 0; i < scores.size(); ++i) {
        const Tokens& tokens = continuations[i];
        EXPECT_EQ(scores[i].greedy, std::equal(tokens.begin(), tokens.end(), path.begin()))
            << "prompt " << seed << ", continuation " << i;
      }
    }
  }
}

TEST(Score, TellsTheLikeliestTokensInEachPlace) {
  Random random(5);
  Session session(load("tinyllama"));
  const Tokens prompt = random.tokens(30, 256);
  Branch branch = session.prefill(std::span(prompt));
  const Tokens stem = random.tokens(6, 256);
  Branch copy = branch.fork();
  const Tokens best = session.decode(copy, greedy(8)).ids;
  const std::vector<Tokens> continuations{
      stem, joined(stem, random.tokens(3, 256)), best, {stem[0]}};
  const std::vector<Score> plain = branch.score_tokens(continuations);
  for (const int n : {1, 5, 1000}) {
    const std::vector<Score> scores = branch.score_tokens(continuations, {.top_logprobs = n});
    for (std::size_t i = 0; i < continuations.size(); ++i) {
      EXPECT_EQ(scores[i].tokens, plain[i].tokens);
      EXPECT_TRUE(plain[i].top.empty());
      ASSERT_EQ(scores[i].top.size(), continuations[i].size());
      Branch at = branch.fork();
      for (std::size_t j = 0; j < continuations[i].size(); ++j) {
        const std::vector<TokenLogprob>& top = scores[i].top[j];
        const auto expected = session.next_tokens(std::span(&at, 1), {.top = n}).front();
        ASSERT_EQ(top.size(), expected.size());
        for (std::size_t k = 0; k < top.size(); ++k) {
          EXPECT_EQ(top[k].id, expected[k].id);
          // A device sums the exponentials of a scored row in an order of its own.
          EXPECT_FLOAT_EQ(top[k].logprob, expected[k].logprob);
          if (top[k].id != continuations[i][j]) continue;
          EXPECT_EQ(top[k].logprob, scores[i].tokens[j]);
        }
        at.append(std::span(&continuations[i][j], 1));
      }
    }
    // Greedy by the equality of two floats.
    for (std::size_t j = 0; j < best.size(); ++j) {
      EXPECT_EQ(scores[2].top[j][0].logprob, scores[2].tokens[j]);
    }
  }
  EXPECT_ERROR(branch.score_tokens({{1}}, {.top_logprobs = -1}), "top_logprobs is -1");
  const auto submitted =
      session.submit_score_tokens(std::span(&branch, 1), {best}, {.top_logprobs = 2}).get();
  EXPECT_EQ(submitted[0][0].top.size(), best.size());
}

TEST(Score, OfARefusedTokenTellsTheModelsLikeliestTokens) {
  Session session(load("dendrite-24"));
  Branch branch = session.prefill("Once");
  branch.constrain(Constraint::regex("[ab]+"));
  const Score score = branch.score({"ac"}, {.top_logprobs = 3}).front();
  ASSERT_EQ(score.tokens.size(), 2u);
  EXPECT_TRUE(std::isinf(score.tokens[1]));
  ASSERT_EQ(score.top.size(), 2u);
  EXPECT_TRUE(std::isfinite(score.top[1][0].logprob));
}

TEST(Score, IsNotGreedyWhereItCouldNotBeComputed) {
  Session session(load("tinyllama"), {.budget = {.tokens = 6}});
  Branch branch = session.prefill(Random(1).tokens(6, 256));
  const Score score = branch.score_tokens({{1, 2, 3}}).front();
  EXPECT_TRUE(std::isnan(score.logprob));
  EXPECT_FALSE(score.greedy);
}

TEST(Score, OfSeveralBranchesInOneBatchIsThatOfEach) {
  Random random(3);
  Session session(load("qwen3_swa"));
  const Tokens prompt = random.tokens(90, 256);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches;
  for (int i = 0; i < 6; ++i) {
    branches.push_back(root.at(random.in(1, 90)));
    branches.back().append(random.tokens(random.in(1, 60), 256));
  }
  std::vector<Tokens> continuations;
  for (int i = 0; i < 30; ++i) continuations.push_back(random.tokens(random.in(1, 25), 256));
  std::vector<std::vector<Score>> lone;
  for (Branch& branch : branches) {
    Branch copy = branch.fork();
    lone.push_back(copy.score_tokens(continuations));
  }
  const auto together = session.score_tokens(branches, continuations);
  ASSERT_EQ(together.size(), branches.size());
  for (std::size_t i = 0; i < branches.size(); ++i) {
    for (std::size_t j = 0; j < continuations.size(); ++j) {
      EXPECT_EQ(together[i][j].tokens, lone[i][j].tokens);
      EXPECT_EQ(together[i][j].logprob, lone[i][j].logprob);
    }
  }
  EXPECT_TRUE(test::tree_is_sound(session.engine(), {std::span(branches), std::span(&root, 1)}));
}

TEST(Score, TakesSeveralStepsWhereOneCannotHoldAllRows) {
  Random random(4);
  const Engine alone = load("tinyllama", {.prefix_index = false});
  Session session(load("tinyllama", {.kv_tokens = 1 << 16}));
  const Tokens prompt = random.tokens(10, 256);
  Branch branch = session.prefill(std::span(prompt));
  std::vector<Tokens> continuations;
  for (int i = 0; i < 60; ++i) continuations.push_back(random.tokens(30, 256));
  continuations.push_back(random.tokens(1300, 256));
  const std::vector<Score> scores = branch.score_tokens(continuations);
  // 60 * 29 + 1299 tokens are computed.
  EXPECT_GT(session.stats().steps, 3039 / core_of(session.engine())->model->max_rows());
  for (const std::size_t i : {0u, 17u, 40u, 59u}) {
    const std::vector<double> expected = one_by_one(alone, prompt, continuations[i]);
    for (std::size_t j = 0; j < expected.size(); ++j) {
      EXPECT_NEAR(scores[i].tokens[j], expected[j], 1e-5) << i << ", " << j;
    }
  }
  const Tokens all = joined(prompt, continuations.back());
  Branch walker = session.prefill(std::span(all));
  Branch before_last = walker.at(walker.length() - 1);
  const std::vector<float> logits = logits_of(before_last);
  EXPECT_NEAR(scores.back().tokens.back(),
              logits[static_cast<std::size_t>(continuations.back().back())] - log_sum_exp(logits),
              1e-5);
  EXPECT_EQ(scores.back().tokens.size(), 1300u);
}

TEST(Score, OfABranchWhoseTokensAreNotComputedYet) {
  Random random(5);
  const Engine alone = load("tinyllama", {.prefix_index = false});
  Session session(load("tinyllama"));
  Tokens prompt = random.tokens(10, 256);
  Branch branch = session.prefill(std::span(prompt));
  const Tokens more = random.tokens(25, 256);
  branch.append(more);
  prompt = joined(prompt, more);
  const Tokens continuation = random.tokens(4, 256);
  const std::vector<Score> scores = branch.score_tokens({continuation});
  const std::vector<double> expected = one_by_one(alone, prompt, continuation);
  for (std::size_t j = 0; j < 4; ++j) EXPECT_NEAR(scores[0].tokens[j], expected[j], 1e-5);
  EXPECT_EQ(branch.tokens(), prompt);
}

TEST(Score, OverALargeVocabularyTakesAsManyStepsAsItsLogitsNeed) {
  // Logits of one step are bounded in bytes: here 220 rows of 512.
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("dendrite_score_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  nlohmann::json config =
      nlohmann::json::parse(std::ifstream(test::model_path("qwen3") / "config.json"));
  config["vocab_size"] = 151936;
  std::ofstream(folder / "config.json") << config.dump();
  const EngineOptions options{.dtype = "f32",
                              .threads = 2,
                              .kv_tokens = 4096,
                              .load_format = "dummy",
                              .prefix_index = false};
  const Engine e = Engine::load(folder.string(), options);
  std::filesystem::remove_all(folder);
  Random random(9);
  Session session(e);
  const Tokens prompt = random.tokens(8, 151936);
  const Tokens stem = random.tokens(150, 151936);
  std::vector<Tokens> continuations;
  for (int i = 0; i < 4; ++i) continuations.push_back(joined(stem, random.tokens(50, 151936)));
  Branch branch = session.prefill(std::span(prompt));
  const std::int64_t before = session.stats().steps;
  const std::vector<Score> scores = branch.score_tokens(continuations);
  EXPECT_GE(session.stats().steps - before, 2);
  for (std::size_t i = 0; i < continuations.size(); ++i) {
    Session other(e);
    Branch lone = other.prefill(std::span(prompt));
    EXPECT_EQ(lone.score_tokens({continuations[i]})[0].tokens, scores[i].tokens);
  }
}

TEST(Expand, GivesTheLikeliestNextTokens) {
  Random random(6);
  Session session(load("tinyllama"));
  const Tokens prompt = random.tokens(20, 256);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches = root.fork(2);
  branches[1].append(random.tokens(9, 256));
  auto children = session.expand(branches, {.top = 7});
  for (std::size_t i = 0; i < 2; ++i) {
    const std::vector<float> logits = logits_of(branches[i]);
    const double lse = log_sum_exp(logits);
    std::vector<float> sorted = logits;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    ASSERT_EQ(children[i].size(), 7u);
    for (std::size_t j = 0; j < 7; ++j) {
      const Token token = children[i][j].tokens().back();
      EXPECT_EQ(logits[static_cast<std::size_t>(token)], sorted[j]);
      EXPECT_NEAR(children[i][j].logprob(), sorted[j] - lse, 1e-5);
      EXPECT_EQ(children[i][j].tokens(), joined(branches[i].tokens(), Tokens{token}));
      EXPECT_EQ(children[i][j].parent(), branches[i].id());
    }
  }
}

TEST(Expand, LeavesOutWhatIsTooUnlikely) {
  Random random(7);
  Session session(load("tinyllama"));
  const Tokens prompt = random.tokens(20, 256);
  Branch root = session.prefill(std::span(prompt));
  const std::vector<float> logits = logits_of(root);
  const double lse = log_sum_exp(logits);
  for (const double bar : {0.5, 0.05, 0.004, 1e-30}) {
    const auto expected = std::count_if(logits.begin(), logits.end(),
                                        [&](float value) { return std::exp(value - lse) >= bar; });
    EXPECT_EQ(std::ssize(session.expand(std::span(&root, 1), {.min_prob = bar})[0]), expected)
        << bar;
  }
  EXPECT_EQ(session.expand(std::span(&root, 1), {.top = 2, .min_prob = 1e-9})[0].size(), 2u);
}

TEST(Stats, CountWhatSharingSaves) {
  Session session(load("tinyllama", {.prefix_index = false}));
  const Tokens prompt = Random(8).tokens(100, 256);
  Branch root = session.prefill(std::span(prompt));
  EXPECT_EQ(session.stats().tokens_computed, 100);
  EXPECT_EQ(session.stats().tokens_independent, 100);
  std::vector<Branch> branches = root.fork(10);
  session.decode(branches, greedy(20));
  const Stats stats = session.stats();
  EXPECT_EQ(stats.tokens_generated, 200);
  // Each branch computes 19 of its 20 tokens; the last one's distribution nobody asked for.
  EXPECT_EQ(stats.tokens_computed, 100 + 10 * 19);
  EXPECT_EQ(stats.tokens_independent, 100 + 10 * (100 + 19));
  EXPECT_EQ(stats.tokens_redundant, 0);
  EXPECT_EQ(stats.forks, 10);
  EXPECT_EQ(stats.copies_on_write, 10);
  EXPECT_LT(stats.kv_bytes_unique * 3, stats.kv_bytes_naive);
  EXPECT_GT(stats.fork_ns, 0);
}

TEST(Stats, ARequestOfItsOwnTakesAsManyRowsAsItIsComputed) {
  Random random(9);
  Session session(load("tinyllama", {.prefix_index = false}));
  const auto expect_equal = [&](std::int64_t rows) {
    EXPECT_EQ(session.stats().tokens_computed, rows);
    EXPECT_EQ(session.stats().tokens_independent, rows);
  };
  Branch branch = session.prefill(std::span<const Token>(random.tokens(30, 256)));
  expect_equal(30);
  session.decode(branch, greedy(12));
  expect_equal(41);  // nobody has asked what comes after the last token
  branch.append(random.tokens(700, 256));
  session.decode(branch, greedy(1));
  expect_equal(742);
  for (int i = 0; i < 3; ++i) {
    branch = std::move(session.expand(std::span(&branch, 1), {.top = 1})[0].front());
    expect_equal(743 + i);
  }
  session.decode(branch, greedy(5));
  expect_equal(750);
}

TEST(Stats, BranchesThatNobodyAsksForTakeNoRows) {
  Session session(load("tinyllama", {.prefix_index = false}));
  Branch root = session.prefill(std::span<const Token>(Random(10).tokens(100, 256)));
  std::vector<Branch> children = std::move(session.expand(std::span(&root, 1), {.top = 50})[0]);
  std::vector<Branch> forks = root.fork(50);
  session.decode(forks, greedy(0));
  EXPECT_EQ(session.stats().tokens_independent, 100);
  children.resize(3);
  children = std::move(session.expand(std::span(&children.back(), 1), {.top = 50})[0]);
  EXPECT_EQ(session.stats().tokens_independent, 100 + 101);
  session.decode(children[0], greedy(4));  // in the request of the one that it continues
  EXPECT_EQ(session.stats().tokens_independent, 100 + 101 + 4);
  session.decode(children[1], greedy(4));
  EXPECT_EQ(session.stats().tokens_independent, 100 + 101 + 4 + 102 + 3);
}

TEST(Stats, CallsThatAreCutCountAsFarAsTheyCame) {
  std::stop_source stopped;
  stopped.request_stop();
  Session session(load("tinyllama", {.prefix_index = false}));
  const Tokens prompt = Random(11).tokens(100, 256);
  Branch root = session.prefill(std::span(prompt));
  DecodeParams params = greedy(5);
  params.cancel = stopped.get_token();
  std::vector<Branch> forks = root.fork(4);
  for (Branch& fork : forks) fork.append(Tokens{7});
  session.decode(forks, params);
  session.score_tokens(forks, {{1, 2}, {3}}, {.cancel = stopped.get_token()});
  session.expand(forks, {.top = 5, .cancel = stopped.get_token()});
  const Branch none = session.prefill(std::span(prompt), {.cancel = stopped.get_token()});
  EXPECT_EQ(session.stats().tokens_independent, 100);

  Session small(load("tinyllama", {.prefix_index = false}), {.budget = {.tokens = 60}});
  Branch half = small.prefill(std::span(prompt));
  EXPECT_EQ(half.finish(), Finish::kBudget);
  EXPECT_EQ(small.stats().tokens_computed, 60);
  EXPECT_EQ(small.stats().tokens_independent, 60);
}

}  // namespace
}  // namespace dendrite
