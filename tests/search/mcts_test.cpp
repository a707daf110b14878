#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "search/search_support.h"

namespace dendrite {
namespace {

using test::path_of;
using test::Paths;
using test::Tokens;
using test::Transcript;

class MctsTest : public test::ScriptedSearch {
 protected:
  MctsTest() {
    for (const char a : {'a', 'b', 'c'}) {
      for (const char b : {'\0', 'a', 'b', 'c'}) {
        for (const char c : {'\0', 'a', 'b', 'c'}) {
          std::string path(1, a);
          if (b != '\0') path += b;
          if (b != '\0' && c != '\0') path += c;
          values[path] = static_cast<double>(std::hash<std::string>()(path) % 100) / 100;
        }
      }
    }
  }

  /// What each path was worth and how often it was visited.
  static std::map<std::string, std::pair<std::int64_t, double>> visits_of(
      const SearchResult& result) {
    std::vector<std::string> paths = {""};
    std::map<std::string, std::pair<std::int64_t, double>> out;
    for (const ThoughtRecord& t : result.tree) {
      paths.push_back(paths[static_cast<std::size_t>(t.parent)] + t.text);
      if (t.visits > 0) out[paths.back()] = {t.visits, t.value};
    }
    return out;
  }

  /// The sequential search, by the formulas and nothing else.
  std::map<std::string, std::pair<std::int64_t, double>> reference(Mcts::Rule rule, double c,
                                                                   int iterations) {
    std::map<std::string, double> count, total, prior = {{"a", 0.5}, {"b", 0.3}, {"c", 0.2}};
    std::set<std::string> opened;
    for (int i = 0; i < iterations; ++i) {
      std::string at;
      const auto child = [&] {
        std::string best;
        double best_score = -1e300;
        for (const char letter : {'a', 'b', 'c'}) {
          const std::string path = at + letter;
          const double n = count[path];
          const double mean = n > 0 ? total[path] / n : 0;
          const double score = rule == Mcts::Rule::kPuct
                                   ? mean + c * prior[std::string(1, letter)] *
                                                std::sqrt(std::max(1.0, count[at])) / (1 + n)
                               : n == 0 ? 1e299
                                        : mean + c * std::sqrt(std::log(count[at]) / n);
          if (score > best_score) {
            best = path;
            best_score = score;
          }
        }
        return best;
      };
      while (opened.contains(at)) at = child();
      if ((at.empty() || count[at] > 0) && at.size() < 3) {
        opened.insert(at);
        at = child();
      }
      const double value = values[at];
      for (std::string path = at;; path.pop_back()) {
        ++count[path];
        total[path] += value;
        if (path.empty()) break;
      }
    }
    std::map<std::string, std::pair<std::int64_t, double>> out;
    for (const auto& [path, n] : count) {
      if (n > 0 && !path.empty()) out[path] = {static_cast<std::int64_t>(n), total[path] / n};
    }
    return out;
  }
};

TEST_F(MctsTest, OneDescentARoundFollowsTheFormulas) {
  for (const Mcts::Rule rule : {Mcts::Rule::kUct, Mcts::Rule::kPuct}) {
    for (const double exploration : {0.2, 1.4}) {
      Mcts strategy = script<Mcts>(3);
      strategy.rule = rule;
      strategy.exploration = exploration;
      strategy.iterations = 70;
      strategy.batch = 1;
      strategy.steps.prior = [](const Thought& thought) {
        return thought.text == "a" ? 5.0 : thought.text == "b" ? 3.0 : 2.0;
      };
      const auto got = visits_of(session.run_tree(strategy, "start\n"));
      const auto expected = reference(rule, exploration, 70);
      ASSERT_EQ(got.size(), expected.size());
      for (const auto& [path, visits] : expected) {
        ASSERT_TRUE(got.contains(path)) << path;
        EXPECT_EQ(got.at(path).first, visits.first) << path;
        EXPECT_NEAR(got.at(path).second, visits.second, 1e-12) << path;
      }
    }
  }
}

TEST(MctsScores, AreTheFormulas) {
  EXPECT_DOUBLE_EQ(uct_score(0.5, 4, 20, 2), 0.5 + 2 * std::sqrt(std::log(20.0) / 4));
  EXPECT_EQ(uct_score(0.5, 0, 20, 2), std::numeric_limits<double>::infinity());
  EXPECT_DOUBLE_EQ(puct_score(0.5, 0.25, 3, 16, 2), 0.5 + 2 * 0.25 * 4.0 / 4.0);
  EXPECT_DOUBLE_EQ(puct_score(0, 0.25, 0, 0, 2), 0.5);
}

TEST_F(MctsTest, VirtualLossSpreadsARound) {
  values = {{"a", 1}};
  Mcts strategy = script<Mcts>(3);
  strategy.exploration = 0.1;
  strategy.batch = 3;
  strategy.iterations = 6;
  session.run_tree(strategy, "start\n");
  // A visit under way counts 0: half of a's value is still more than b's.
  EXPECT_EQ(judged, (Paths{"a", "b", "c", "aa", "ab", "ac"}));
  judged.clear();
  strategy.loss = -5;
  session.run_tree(strategy, "start\n");
  EXPECT_EQ(judged, (Paths{"a", "b", "c", "aa", "ba", "ca"}));
}

TEST_F(MctsTest, ARoundIsOneCallOfEachCallable) {
  Mcts strategy = script<Mcts>(3);
  strategy.batch = 3;
  strategy.iterations = 9;
  strategy.loss = -5;
  std::vector<std::size_t> proposed, asked;
  const auto propose = strategy.steps.propose;
  const auto judge = strategy.steps.judgement.judge;
  strategy.steps.propose = [&](Session& s, std::span<Branch> nodes) {
    proposed.push_back(nodes.size());
    return propose(s, nodes);
  };
  strategy.steps.judgement.judge = [&](Session& s, std::span<Branch> candidates) {
    asked.push_back(candidates.size());
    return judge(s, candidates);
  };
  session.run_tree(strategy, "start\n");
  EXPECT_EQ(proposed, (std::vector<std::size_t>{1, 3}));
  EXPECT_EQ(asked, (std::vector<std::size_t>{3, 3, 3}));
}

TEST_F(MctsTest, ValuesAreThePriorities) {
  Mcts strategy = script<Mcts>(3);
  int visited = 0;
  strategy.on_event = [&](const SearchEvent& event) {
    if (event.kind != SearchEvent::Kind::kVisited) return;
    ++visited;
    EXPECT_EQ(event.thought->branch.priority(), static_cast<int>(event.thought->value * 1000));
  };
  session.run_tree(strategy, "start\n");
  EXPECT_GT(visited, 64);
}

TEST_F(MctsTest, DeadEndsAndValuesThatAreNoNumbersCountAsLosses) {
  values = {{"a", 1}, {"b", std::nan("")}, {"c", 0.5}};
  Mcts strategy = script<Mcts>(3);
  strategy.batch = 1;
  strategy.iterations = 40;
  strategy.steps.accept = [](const Branch& branch, const std::string&) {
    return path_of(branch).size() == 1 || path_of(branch)[0] != 'a';
  };
  values["ca"] = 0.9;
  const SearchResult result = session.run_tree(strategy, "start\n");
  const auto visits = visits_of(result);
  EXPECT_EQ(path_of(result.branch)[0], 'c');
  EXPECT_EQ(visits.at("b").second, 0);
  EXPECT_LT(visits.at("a").second, 0.5);
  std::int64_t sum = 0;
  for (const auto& [path, visit] : visits) sum += path.size() == 1 ? visit.first : 0;
  EXPECT_EQ(sum, 40);
}

TEST_F(MctsTest, EndsAtASolutionAmongTheSteps) {
  Mcts strategy = script<Mcts>(3);
  strategy.solved = [](const Branch& branch, const std::string&) {
    return path_of(branch) == "cb";
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  ASSERT_TRUE(result.solved);
  EXPECT_EQ(path_of(result.branch), "cb");
  EXPECT_EQ(result.path.size(), 2u);
  for (const ThoughtRecord& step : result.path) EXPECT_TRUE(step.kept);
}

TEST_F(MctsTest, RolloutsDoNotShiftTheSteps) {
  std::map<Tokens, std::uint64_t> plain;  // by a node's tokens: the stream of its first step
  for (const int rollouts : {0, 3}) {
    Session s(engine, {.seed = 4});
    Mcts strategy = script<Mcts>(3);
    strategy.iterations = 20;
    strategy.rollouts = rollouts;
    strategy.rollout.max_tokens = 2;
    std::size_t known = 0;
    strategy.steps.propose = [&](Session& session_of, std::span<Branch> nodes) {
      Proposals out = test::letters(3)(session_of, nodes);
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        const std::uint64_t stream = out.children[i][0].stream();
        const auto [place, added] = plain.emplace(nodes[i].tokens(), stream);
        EXPECT_EQ(place->second, stream);
        known += added ? 0 : 1;
      }
      return out;
    };
    s.run_tree(strategy, "start\n");
    if (rollouts > 0) {
      EXPECT_GT(known, 1u);
    }
  }
}

TEST_F(MctsTest, RolloutsAreOneBatchAndAreDropped) {
  const Engine shipped = test::load("dendrite-24", {.prefix_index = false});
  Session s(shipped, {.seed = 4});
  Mcts strategy;
  strategy.batch = 4;
  strategy.iterations = 4;
  strategy.rollouts = 3;
  strategy.rollout.max_tokens = 30;
  strategy.steps.candidates = 6;
  strategy.steps.max_step_tokens = 30;
  std::vector<std::string> texts;
  strategy.steps.judgement.evaluate = [&](const Candidate& rollout) {
    texts.push_back(rollout.text);
    EXPECT_TRUE(rollout.history.ends_with(rollout.text));
    return rollout.text.size() % 2 == 0 ? 1.0 : 0.0;
  };
  SearchResult result = s.run_tree(strategy, "P 24: 4 6 7 9\n");
  EXPECT_EQ(result.finish, Finish::kStop);
  ASSERT_EQ(texts.size(), 12u);
  std::size_t next = 0;
  for (const ThoughtRecord& t : result.tree) {
    if (t.visits == 0) continue;
    double sum = 0;
    for (int i = 0; i < 3; ++i) sum += texts[next++].size() % 2 == 0 ? 1.0 : 0.0;
    EXPECT_DOUBLE_EQ(t.value, sum / 3);
  }
  EXPECT_LE(s.stats().steps, 30 + 30);
  EXPECT_EQ(s.stats().tokens_redundant, 0);
  EXPECT_EQ(s.stats().branches_live, 1);
  // A rollout that solves ends the search, as the last thought of the path.
  strategy.solved = [](const Branch&, const std::string& text) {
    return std::count(text.begin(), text.end(), '\n') >= 2;
  };
  result = s.run_tree(strategy, "P 24: 4 6 7 9\n");
  ASSERT_TRUE(result.solved);
  EXPECT_EQ(result.path.size(), 2u);
  EXPECT_EQ(result.branch.text().find(result.path[0].text), 0u);
  EXPECT_TRUE(result.branch.text().ends_with(result.path[1].text));
  result = {};
  test::expect_all_pages_free(shipped);
}

TEST_F(MctsTest, TellsTheSameWhateverTheThreadsAndPages) {
  std::string expected;
  for (const EngineOptions& options :
       {EngineOptions{.threads = 1}, EngineOptions{.threads = 3, .page_tokens = 8},
        EngineOptions{.threads = 2, .kv_tokens = 640}}) {
    Engine other = test::load("dendrite-24", options);
    Session s(other, {.seed = 8});
    Transcript transcript;
    Mcts strategy;
    strategy.rule = Mcts::Rule::kPuct;
    strategy.iterations = 24;
    strategy.rollouts = 2;
    strategy.rollout.max_tokens = 20;
    strategy.steps.candidates = 4;
    strategy.on_event = transcript.reader();
    SearchResult result = s.run_tree(strategy, "P 24: 4 6 7 9\n");
    // Rollouts of one node that draw the same tokens compute them each for itself; nothing else.
    EXPECT_LT(s.stats().tokens_redundant, s.stats().tokens_computed / 10);
    if (expected.empty()) expected = transcript.with(result);
    EXPECT_EQ(transcript.with(result), expected);
    result = {};
    test::expect_all_pages_free(other);
  }
}

TEST_F(MctsTest, EndsWithBudgetsAndWithCancellation) {
  const Engine shipped = test::load("dendrite-24", {.prefix_index = false});
  Mcts strategy;
  strategy.iterations = 1000;
  for (const std::int64_t tokens : {3, 30, 2000}) {
    Session poor(shipped, {.budget = {.tokens = tokens}});
    const SearchResult result = poor.run_tree(strategy, "P 24: 4 6 7 9\n");
    EXPECT_EQ(result.finish, Finish::kBudget);
    EXPECT_EQ(result.branch.valid(), tokens == 2000);  // the best so far
  }
  Session s(shipped);
  strategy.budget.tokens = 500;
  EXPECT_EQ(s.run_tree(strategy, "P 24: 4 6 7 9\n").finish, Finish::kBudget);
  EXPECT_GE(s.stats().tokens_computed, 500);
  EXPECT_LT(s.stats().tokens_computed, 5000);
  strategy.budget = {.milliseconds = 1e-3};
  EXPECT_EQ(s.run_tree(strategy, "P 24: 4 6 7 9\n").finish, Finish::kBudget);
  strategy.budget = {};
  std::stop_source source;
  strategy.cancel = source.get_token();
  strategy.on_event = [&](const SearchEvent& event) {
    if (event.thought->depth == 2) source.request_stop();
  };
  const SearchResult result = s.run_tree(strategy, "P 24: 4 6 7 9\n");
  EXPECT_EQ(result.finish, Finish::kCancelled);
  EXPECT_TRUE(result.branch.valid());
}

TEST_F(MctsTest, RefusesWhatItCannotDo) {
  Mcts strategy = script<Mcts>(2);
  strategy.batch = 0;
  EXPECT_ERROR(session.run_tree(strategy, "x"), "mcts: batch is 0");
  strategy = script<Mcts>(2);
  strategy.steps.propose = [](Session&, std::span<Branch>) { return Proposals(); };
  EXPECT_ERROR(session.run_tree(strategy, "x"), "mcts: propose returned 0 lists of steps");
  strategy = script<Mcts>(2);
  strategy.steps.judgement.judge = [](Session&, std::span<Branch>) {
    return std::vector<double>(5);
  };
  EXPECT_ERROR(session.run_tree(strategy, "x"), "mcts: judge returned 5 values; expected 2");
}

}  // namespace
}  // namespace dendrite
