// Best-of-n and self-consistency.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "search/search_support.h"

namespace dendrite {
namespace {

using test::Transcript;

class AnswersTest : public ::testing::Test {
 protected:
  AnswersTest() {
    sampling.max_tokens = 64;
    sampling.stop = {"\n"};
    sampling.temperature = 1.0;
  }

  /// Lines that the model samples, as one decode call would.
  std::vector<Generation> lines(Session& s, int n) {
    Branch root = s.prefill(prompt);
    std::vector<Branch> branches = root.fork(n);
    return s.decode(branches, sampling);
  }

  Engine engine = test::load("dendrite-24", {.prefix_index = false});
  std::string prompt = "P 24: 4 6 7 9\n";
  DecodeParams sampling;
};

TEST_F(AnswersTest, BestOfNSamplesInOneBatchAndTakesTheBest) {
  Session session(engine, {.seed = 3});
  BestOfN strategy{.n = 12, .sampling = sampling};
  std::size_t asked = 0;
  strategy.judgement.judge = [&](Session&, std::span<Branch> answers) {
    asked = answers.size();
    std::vector<double> values;
    for (const Branch& branch : answers) {
      values.push_back(branch.text()[0] == '9' ? std::nan("") : branch.text()[0]);
    }
    return values;
  };
  const SearchResult result = session.run_tree(strategy, prompt);
  Session beside(engine, {.seed = 3});
  const std::vector<Generation> expected = lines(beside, 12);
  ASSERT_EQ(result.tree.size(), 12u);
  EXPECT_EQ(asked, 12u);
  char best = 0;
  std::size_t longest = 0;
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(result.tree[i].text, expected[i].text);
    EXPECT_EQ(result.tree[i].tokens, std::ssize(expected[i].ids));
    if (expected[i].text[0] != '9') best = std::max(best, expected[i].text[0]);
    longest = std::max(longest, expected[i].ids.size());
  }
  EXPECT_EQ(result.path.at(0).text[0], best);
  EXPECT_EQ(result.others.size(), 11u);
  EXPECT_TRUE(std::isnan(result.others.back().value));
  EXPECT_EQ(session.stats().steps,
            static_cast<std::int64_t>(longest));  // the prompt's gives the first
  EXPECT_EQ(session.stats().tokens_redundant, 0);
}

TEST_F(AnswersTest, ASolutionComesBeforeWhatIsJudgedBetter) {
  Session session(engine, {.seed = 3});
  BestOfN strategy{.n = 12, .sampling = sampling};
  strategy.judgement.evaluator_threads = 2;
  strategy.judgement.evaluate = [](const Candidate& c) { return static_cast<double>(c.text[0]); };
  const std::vector<Generation> expected = lines(session, 12);
  const std::string least =
      std::ranges::min_element(expected, {}, [](const Generation& g) { return g.text; })->text;
  Session again(engine, {.seed = 3});
  strategy.solved = [&](const Branch&, const std::string& answer) { return answer == least; };
  const SearchResult result = again.run_tree(strategy, prompt);
  EXPECT_TRUE(result.solved);
  EXPECT_EQ(result.path.at(0).text, least);
}

TEST_F(AnswersTest, TheFirstSuccessEndsTheRestInThatStep) {
  Session all(engine, {.seed = 5});
  const std::vector<Generation> expected = lines(all, 16);
  // What ends as the fourth solves: by tokens, then by place.
  std::vector<std::size_t> order(16);
  for (std::size_t i = 0; i < 16; ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return expected[i].ids.size(); });
  std::size_t fourth = 3;
  while (expected[order[fourth]].ids.size() == expected[order[0]].ids.size()) ++fourth;
  const Generation& winner = expected[order[fourth]];
  for (const std::vector<std::string>& stop :
       {std::vector<std::string>{"\n"}, std::vector<std::string>{"\n", "never this"}}) {
    Session session(engine, {.seed = 5});
    BestOfN strategy{.n = 16, .sampling = sampling, .first_success = true};
    strategy.sampling.stop = stop;
    strategy.solved = [&](const Branch&, const std::string& answer) {
      return answer == winner.text;
    };
    const SearchResult result = session.run_tree(strategy, prompt);
    ASSERT_TRUE(result.solved);
    EXPECT_EQ(result.path[0].text, winner.text);
    EXPECT_EQ(session.stats().steps, std::ssize(winner.ids));
    for (std::size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(result.tree[i].tokens,
                static_cast<std::int64_t>(std::min(winner.ids.size(), expected[i].ids.size())));
    }
  }
}

TEST_F(AnswersTest, AStopStringMayCrossTokens) {
  // A byte is a token: "=" and the digit after it are two.
  sampling.stop = {"=1", "=2", "=3", " | "};
  Session all(engine, {.seed = 6});
  const std::vector<Generation> expected = lines(all, 10);
  Session session(engine, {.seed = 6});
  BestOfN strategy{.n = 10, .sampling = sampling, .first_success = true};
  strategy.solved = [](const Branch&, const std::string&) { return false; };
  const SearchResult result = session.run_tree(strategy, prompt);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(result.tree[i].text, expected[i].text);
    EXPECT_EQ(result.tree[i].tokens, std::ssize(expected[i].ids));
  }
  EXPECT_EQ(session.stats().tokens_redundant, 0);
}

TEST_F(AnswersTest, AConstraintIsOfTheWholeAnswer) {
  sampling.stop.clear();
  sampling.constraint = Constraint::regex("[0-9]{2}[-+*/][0-9]=[0-9]{2};");
  Session beside(engine, {.seed = 3});
  std::set<std::string> expected;
  for (const Generation& line : lines(beside, 8)) expected.insert(line.text);
  // With and without looking at them after each token.
  for (const bool first_success : {false, true}) {
    Session session(engine, {.seed = 3});
    BestOfN strategy{.n = 8, .sampling = sampling, .first_success = first_success};
    std::set<std::string> asked;
    strategy.solved = [&](const Branch&, const std::string& answer) {
      asked.insert(answer);
      return false;
    };
    SearchResult result = session.run_tree(strategy, prompt);
    EXPECT_EQ(asked, expected);
    EXPECT_EQ(result.branch.finish(), Finish::kStop);
    EXPECT_FALSE(result.branch.constraint().has_value());
  }
}

TEST_F(AnswersTest, AStopOfSeveralTokensIsSeenBehindCharactersOfSeveral) {
  for (const char* const model : {"llama2", "qwen3"}) {  // byte fallback, and bytes
    const Engine other = test::load(model);
    for (const char* const stop : {"€!", "!\n", "😀€", "\n\n"}) {
      std::vector<std::string> texts;
      std::vector<std::int64_t> tokens;
      for (const bool first_success : {false, true}) {  // in one call, and token by token
        Session session(other);
        BestOfN strategy{.n = 1, .first_success = first_success};
        strategy.sampling = {.max_tokens = 60,
                             .stop = {stop},
                             .temperature = 1.0,
                             .constraint = Constraint::regex("łł€😀€!\n\nabc€€!{9}")};
        const SearchResult result = session.run_tree(strategy, "start ");
        ASSERT_TRUE(result.branch.valid());
        texts.push_back(result.path[0].text);
        tokens.push_back(result.path[0].tokens);
      }
      EXPECT_EQ(texts[1], texts[0]) << model << " " << stop;
      EXPECT_EQ(tokens[1], tokens[0]) << model << " " << stop;
    }
  }
}

TEST_F(AnswersTest, VotesAreCounted) {
  Session session(engine, {.seed = 7});
  SelfConsistency strategy{.n = 20, .sampling = sampling};
  // The operator votes; a division abstains.
  const auto op = [](const std::string& text) -> std::optional<std::string> {
    const std::size_t at = text.find_first_of("+-*/");
    if (at == std::string::npos || text[at] == '/') return std::nullopt;
    return text.substr(at, 1);
  };
  strategy.answer = [&](const Branch&, const std::string& text) { return op(text); };
  const SearchResult result = session.run_tree(strategy, prompt);
  Session beside(engine, {.seed = 7});
  std::map<std::string, int> expected;
  int votes = 0;
  for (const Generation& line : lines(beside, 20)) {
    if (const auto vote = op(line.text)) ++expected[*vote], ++votes;
  }
  ASSERT_GE(expected.size(), 2u);
  ASSERT_EQ(result.votes.size(), expected.size());
  for (std::size_t i = 0; i < result.votes.size(); ++i) {
    EXPECT_EQ(result.votes[i].count, expected[result.votes[i].answer]);
    if (i > 0) {
      EXPECT_LE(result.votes[i].count, result.votes[i - 1].count);
    }
  }
  EXPECT_EQ(op(result.path.at(0).text), result.votes[0].answer);
  EXPECT_DOUBLE_EQ(result.path[0].value, static_cast<double>(result.votes[0].count) / votes);
  EXPECT_FALSE(result.solved);
}

TEST_F(AnswersTest, ConfidenceEndsTheVote) {
  const auto votes_at = [&](double confidence, bool all_agree) {
    Session session(engine, {.seed = 7});
    SelfConsistency strategy{.n = 24, .sampling = sampling, .confidence = confidence};
    int asked = 0;
    strategy.answer = [&](const Branch&, const std::string&) {
      ++asked;
      return std::optional<std::string>(all_agree ? "yes" : std::to_string(asked));
    };
    const SearchResult result = session.run_tree(strategy, prompt);
    EXPECT_EQ(result.finish, Finish::kStop);
    int total = 0;
    for (const Vote& vote : result.votes) total += vote.count;
    EXPECT_EQ(total, asked);
    return total;
  };
  EXPECT_EQ(votes_at(1, true), 24);
  EXPECT_EQ(votes_at(0.95, false), 24);  // one vote each: nothing is ever settled
  const int early = votes_at(0.95, true);
  EXPECT_GE(early, 4);  // 1 - 1/32 of the Beta distribution after four, 0.9375 after three
  EXPECT_LT(early, 24);
  EXPECT_GE(votes_at(0.999999999, true), 13);  // half and one more cannot be overtaken
}

TEST(MajorityConfidence, IsTheBetaDistributionsTail) {
  EXPECT_NEAR(majority_confidence(0, 0), 0.5, 1e-12);
  EXPECT_NEAR(majority_confidence(3, 3), 0.5, 1e-12);
  EXPECT_NEAR(majority_confidence(3, 0), 1 - std::pow(0.5, 4), 1e-12);
  // By the trapezium rule over p^4 (1 - p)^2, normalised.
  double above = 0;
  double all = 0;
  for (int i = 0; i <= 100000; ++i) {
    const double p = i / 100000.0;
    const double density = std::pow(p, 4) * std::pow(1 - p, 2);
    all += density;
    if (p > 0.5) above += density;
  }
  EXPECT_NEAR(majority_confidence(4, 2), above / all, 1e-5);
}

TEST_F(AnswersTest, TellTheSameWhateverTheThreadsAndPages) {
  std::string expected[2];
  for (const EngineOptions& options :
       {EngineOptions{.threads = 1}, EngineOptions{.threads = 3, .page_tokens = 8},
        EngineOptions{.threads = 2, .kv_tokens = 256}}) {
    Engine other = test::load("dendrite-24", options);
    BestOfN best{.n = 24, .sampling = sampling, .first_success = true};
    best.solved = [](const Branch&, const std::string& answer) { return answer.ends_with("9 11"); };
    SelfConsistency vote{.n = 24, .sampling = sampling, .confidence = 0.9};
    for (int i = 0; i < 2; ++i) {
      Session session(other, {.seed = 9});
      Transcript transcript;
      best.on_event = vote.on_event = transcript.reader();
      SearchResult result =
          i == 0 ? session.run_tree(best, prompt) : session.run_tree(vote, prompt);
      if (expected[i].empty()) expected[i] = transcript.with(result);
      EXPECT_EQ(transcript.with(result), expected[i]);
    }
    test::expect_all_pages_free(other);
  }
}

TEST_F(AnswersTest, EndWithTheBudgetAndWithCancellation) {
  for (const std::int64_t tokens : {3, 14, 60}) {
    for (const bool step_by_step : {false, true}) {
      Session poor(engine, {.budget = {.tokens = tokens}});
      BestOfN best{.sampling = sampling, .first_success = step_by_step};
      best.solved = [](const Branch&, const std::string&) { return false; };
      EXPECT_EQ(poor.run_tree(best, prompt).finish, Finish::kBudget);
      EXPECT_LE(poor.stats().tokens_computed, tokens);
      Session other(engine, {.budget = {.tokens = tokens}});
      SelfConsistency vote{.sampling = sampling, .confidence = step_by_step ? 0.999999999 : 1};
      EXPECT_EQ(other.run_tree(vote, prompt).finish, Finish::kBudget);
    }
  }
  std::stop_source source;
  source.request_stop();
  Session session(engine);
  BestOfN best{.sampling = sampling, .cancel = source.get_token()};
  EXPECT_EQ(session.run_tree(best, prompt).finish, Finish::kCancelled);
  test::expect_all_pages_free(engine);
}

TEST_F(AnswersTest, RefuseWhatTheyCannotDo) {
  Session session(engine);
  EXPECT_ERROR(session.run_tree(BestOfN{.n = 0}, prompt), "n is 0; expected >= 1");
  EXPECT_ERROR(session.run_tree(SelfConsistency{.confidence = 0}, prompt), "confidence is 0");
  BestOfN strategy{.n = 3, .sampling = sampling};
  strategy.judgement.judge = [](Session&, std::span<Branch>) { return std::vector<double>(1); };
  EXPECT_ERROR(session.run_tree(strategy, prompt),
               "best-of-n: judge returned 1 values; expected 3");
}

}  // namespace
}  // namespace dendrite
