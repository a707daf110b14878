#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "search/search_support.h"

namespace dendrite {
namespace {

using test::Tokens;
using test::Transcript;

/// A finished or cut-off continuation.
struct Hypothesis {
  Tokens tokens;
  double score = 0;
};

class BeamTest : public ::testing::Test {
 protected:
  Tokens after_prompt(const Branch& branch) const {
    const Tokens all = branch.tokens();
    return {all.begin() + branch.prompt_length(), all.end()};
  }

  /// Every continuation of up to two tokens by brute force, best first.
  std::vector<Hypothesis> all_of_two(double length_penalty, const std::set<Token>& stops) {
    Branch root = session.prefill(std::span(prompt));
    std::vector<Tokens> singles;
    for (Token id = 0; id < engine.info().vocab; ++id) singles.push_back({id});
    const std::vector<Score> first = root.score_tokens(singles);
    std::vector<Branch> children;
    for (const Tokens& single : singles) {
      children.push_back(root.fork());
      children.back().append(single);
    }
    const auto second = session.score_tokens(children, singles);
    std::vector<Hypothesis> out;
    for (std::size_t a = 0; a < singles.size(); ++a) {
      if (stops.contains(singles[a][0])) {
        out.push_back({singles[a], first[a].logprob});
        continue;
      }
      for (std::size_t b = 0; b < singles.size(); ++b) {
        out.push_back({{singles[a][0], singles[b][0]},
                       (first[a].logprob + second[a][b].logprob) / std::pow(2, length_penalty)});
      }
    }
    std::sort(out.begin(), out.end(),
              [](const auto& x, const auto& y) { return x.score > y.score; });
    return out;
  }

  std::set<Token> stops_of(const BeamSearch& strategy) const {
    std::set<Token> stops(engine.info().eos.begin(), engine.info().eos.end());
    stops.insert(strategy.stop_tokens.begin(), strategy.stop_tokens.end());
    return stops;
  }

  Engine engine = test::load("llama2", {.prefix_index = false});
  Session session{engine};
  Tokens prompt = {1, 20, 30, 40, 50};
};

TEST_F(BeamTest, WideEnoughItIsExhaustiveSearch) {
  std::set<std::size_t> lengths;
  for (const double length_penalty : {0.0, 1.0, 2.0}) {
    BeamSearch strategy;
    strategy.width = static_cast<int>(engine.info().vocab);
    strategy.max_tokens = 2;
    strategy.length_penalty = length_penalty;
    for (Token id = 7; id < 300; id += 5) strategy.stop_tokens.push_back(id);
    const auto expected = all_of_two(length_penalty, stops_of(strategy));
    const SearchResult result = run(session, session.prefill(std::span(prompt)), strategy);
    ASSERT_EQ(result.finish, Finish::kStop);
    ASSERT_EQ(result.others.size(), static_cast<std::size_t>(strategy.width) - 1);
    EXPECT_EQ(after_prompt(result.branch), expected[0].tokens) << length_penalty;
    EXPECT_NEAR(result.path.back().value, expected[0].score, 1e-9);
    for (std::size_t i = 0; i < 99; ++i) {
      const Thought& other = result.others[i];
      EXPECT_EQ(after_prompt(other.branch), expected[i + 1].tokens) << i;
      EXPECT_NEAR(other.value, expected[i + 1].score, 1e-9);
      lengths.insert(expected[i + 1].tokens.size());
    }
  }
  EXPECT_EQ(lengths.size(), 2u);  // both kinds were among the best
}

TEST_F(BeamTest, OneBeamIsGreedyDecoding) {
  BeamSearch strategy;
  strategy.width = 1;
  strategy.max_tokens = 24;
  const SearchResult result = run(session, session.prefill(std::span(prompt)), strategy);
  Branch branch = session.prefill(std::span(prompt));
  const Generation greedy = session.decode(branch, {.max_tokens = 24, .temperature = 0});
  EXPECT_EQ(after_prompt(result.branch), greedy.ids);
  EXPECT_EQ(result.path.size(), greedy.ids.size());
}

/// The same search without the shortcut: it goes on to max_tokens, whatever has finished.
std::vector<Hypothesis> plain_beam(Session& session, Branch root, const BeamSearch& s,
                                   const std::set<Token>& stops) {
  const auto score = [&](const Branch& branch) {
    return branch.logprob() /
           std::pow(static_cast<double>(branch.length() - branch.prompt_length()),
                    s.length_penalty);
  };
  const auto width = static_cast<std::size_t>(s.width);
  std::vector<Branch> running;
  running.push_back(std::move(root));
  std::vector<Hypothesis> done;
  const auto finish = [&](const Branch& branch) {
    const Tokens all = branch.tokens();
    done.push_back({{all.begin() + branch.prompt_length(), all.end()}, score(branch)});
  };
  for (int step = 0; step < s.max_tokens; ++step) {
    std::vector<Branch> next;
    for (auto& children : session.expand(running, {.top = 100})) {
      std::ranges::move(children, std::back_inserter(next));
    }
    std::stable_sort(next.begin(), next.end(),
                     [](const Branch& a, const Branch& b) { return a.logprob() > b.logprob(); });
    running.clear();
    for (std::size_t i = 0; i < next.size() && running.size() < width; ++i) {
      if (!stops.contains(next[i].last_token())) {
        running.push_back(std::move(next[i]));
      } else {
        finish(next[i]);
      }
    }
  }
  for (const Branch& branch : running) finish(branch);
  std::stable_sort(done.begin(), done.end(),
                   [](const auto& a, const auto& b) { return a.score > b.score; });
  return done;
}

TEST_F(BeamTest, EndsEarlyOnlyWhereNothingBetterCanCome) {
  int ended_early = 0;
  for (const double length_penalty : {0.0, 0.6, 1.0}) {
    for (const Token first : {1, 3, 5}) {
      prompt[1] = first;
      BeamSearch strategy;
      strategy.width = 4;
      strategy.max_tokens = 14;
      strategy.length_penalty = length_penalty;
      for (Token id = first; id < 320; id += 6) strategy.stop_tokens.push_back(id);
      const std::int64_t steps = session.stats().steps;
      const SearchResult result = run(session, session.prefill(std::span(prompt)), strategy);
      ended_early += session.stats().steps - steps < strategy.max_tokens;
      const auto expected =
          plain_beam(session, session.prefill(std::span(prompt)), strategy, stops_of(strategy));
      EXPECT_EQ(after_prompt(result.branch), expected[0].tokens);
      for (std::size_t i = 0; i < result.others.size(); ++i) {
        EXPECT_EQ(after_prompt(result.others[i].branch), expected[i + 1].tokens);
      }
      EXPECT_EQ(result.others.size(), 3u);
    }
  }
  EXPECT_GT(ended_early, 0);
}

TEST_F(BeamTest, GroupsAvoidWhatEarlierOnesChose) {
  Branch root = session.prefill(std::span(prompt));
  Branch start[] = {root.fork()};
  const std::vector<Branch> likeliest = std::move(session.expand(start, {.top = 4}).front());
  const double gap = likeliest[0].logprob() - likeliest[1].logprob();
  ASSERT_GT(gap, 0);
  const auto first_tokens = [&](double diversity) {
    BeamSearch strategy;
    strategy.width = 4;
    strategy.groups = 4;
    strategy.max_tokens = 1;
    strategy.diversity = diversity;
    Tokens out;
    strategy.on_event = [&](const SearchEvent& event) {
      if (event.kind == SearchEvent::Kind::kKept) out.push_back(event.thought->branch.last_token());
    };
    run(session, root.fork(), strategy);
    return out;
  };
  const auto token = [&](std::size_t i) { return likeliest[i].last_token(); };
  EXPECT_EQ(first_tokens(0), Tokens(4, token(0)));
  EXPECT_EQ(first_tokens(1000), (Tokens{token(0), token(1), token(2), token(3)}));
  // Just more than the gap: the second group turns away, the third finds both chosen once.
  Tokens expected;
  std::map<Token, int> counts;
  for (int group = 0; group < 4; ++group) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < 4; ++i) {
      const auto selected = [&](std::size_t k) {
        return likeliest[k].logprob() - (gap + 1e-6) * counts[token(k)];
      };
      if (selected(i) > selected(best)) best = i;
    }
    expected.push_back(token(best));
    ++counts[token(best)];
  }
  ASSERT_NE(expected[0], expected[1]);
  EXPECT_EQ(first_tokens(gap + 1e-6), expected);
}

TEST_F(BeamTest, AStepIsOneBatchAndNothingIsComputedTwice) {
  BeamSearch strategy;
  strategy.width = 6;
  strategy.groups = 2;
  strategy.max_tokens = 20;
  const SearchResult result = session.run_tree(strategy, "Once upon");
  EXPECT_EQ(result.finish, Finish::kStop);
  EXPECT_LE(session.stats().steps, 20);  // the prompt's, and one for each token but the last
  EXPECT_EQ(session.stats().tokens_redundant, 0);
}

TEST_F(BeamTest, ForksNothingButWhatItKeeps) {
  BeamSearch strategy;
  strategy.width = 12;
  strategy.groups = 2;
  strategy.max_tokens = 6;
  for (Token id = 0; id < 320; id += 40) strategy.stop_tokens.push_back(id);
  std::int64_t kept = 0;
  strategy.on_event = [&](const SearchEvent& event) {
    kept += event.kind == SearchEvent::Kind::kKept ? 1 : 0;
  };
  const SearchResult result = run(session, session.prefill(std::span(prompt)), strategy);
  EXPECT_EQ(result.finish, Finish::kStop);
  EXPECT_EQ(session.stats().forks, kept + strategy.groups);  // each group begins with one
}

TEST_F(BeamTest, EndsAtWhatSolves) {
  BeamSearch strategy;
  strategy.width = 4;
  strategy.max_tokens = 30;
  for (Token id = 0; id < 320; id += 6) strategy.stop_tokens.push_back(id);
  int finished = 0;
  strategy.solved = [&](const Branch& branch, const std::string&) {
    EXPECT_TRUE(branch.last_token() % 6 == 0 || branch.length() == 35);
    return ++finished == 3;
  };
  const SearchResult result = run(session, session.prefill(std::span(prompt)), strategy);
  EXPECT_TRUE(result.solved);
  EXPECT_EQ(finished, 3);
  EXPECT_EQ(result.path.back().branch_id, result.branch.id());
}

TEST_F(BeamTest, TellsTheSameWhateverTheThreadsAndPages) {
  std::string expected;
  for (const EngineOptions& options :
       {EngineOptions{.threads = 1}, EngineOptions{.threads = 3, .page_tokens = 8},
        EngineOptions{.threads = 2, .kv_tokens = 320}}) {
    Engine other = test::load("llama2", options);
    Session s(other);
    Transcript transcript;
    BeamSearch strategy;
    strategy.width = 6;
    strategy.groups = 3;
    strategy.max_tokens = 16;
    strategy.on_event = transcript.reader();
    SearchResult result = s.run_tree(strategy, "start\n");
    if (expected.empty()) expected = transcript.with(result);
    EXPECT_EQ(transcript.with(result), expected);
    result = {};
    test::expect_all_pages_free(other);
  }
}

TEST_F(BeamTest, EndsWithTheBudgetAndWithCancellation) {
  BeamSearch strategy;
  for (const std::int64_t tokens : {3, 8, 40}) {
    Session poor(engine, {.budget = {.tokens = tokens}});
    EXPECT_EQ(poor.run_tree(strategy, "start\n").finish, Finish::kBudget);
    EXPECT_LE(poor.stats().tokens_computed, tokens);
  }
  std::stop_source source;
  strategy.cancel = source.get_token();
  strategy.on_event = [&](const SearchEvent& event) {
    if (event.thought->depth == 3) source.request_stop();
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(result.finish, Finish::kCancelled);
  EXPECT_EQ(result.tree.back().depth, 3);
  test::expect_all_pages_free(engine);
}

TEST_F(BeamTest, RefusesWidthsThatGroupsDoNotDivide) {
  BeamSearch strategy;
  strategy.width = 5;
  strategy.groups = 2;
  EXPECT_ERROR(session.run_tree(strategy, "x"), "width is 5 and groups is 2");
  strategy = {};
  strategy.diversity = -1;
  EXPECT_ERROR(session.run_tree(strategy, "x"), "diversity is -1");
}

/// Texts that a constraint leaves no choice about, so that they are the same by any numerics.
TEST_F(BeamTest, AStopEndsABeamWithTheTokenThatCompletesIt) {
  struct Case {
    const char* text;
    const char* stop;
    const char* expected;
  };
  for (const char* const model : {"llama2", "qwen3"}) {  // byte fallback, and bytes
    const Engine other = test::load(model);
    Session s(other);
    for (const Case& c :
         {Case{"a\nb{3}", "\n", "a\n"}, Case{"a\n\nb{3}", "\n\n", "a\n\n"},
          Case{"ab\nc{3}", "b\n", "ab\n"}, Case{"a\r\nb{3}", "\r\n", "a\r\n"},
          Case{"ab{3}", "a", "a"}, Case{"a  b{3}", "  ", "a  "}, Case{"łÖ€!{5}", "€!", "łÖ€!"},
          Case{"ab😀{3}", "😀", "ab😀"}, Case{"é€\n😀", "€\n", "é€\n"}}) {
      BeamSearch strategy;
      strategy.width = 2;
      strategy.stop = {c.stop};
      strategy.constraint = Constraint::regex(c.text);
      SearchResult result = s.run_tree(strategy, "start ");
      const std::string text = result.branch.text();
      // A token may go on behind the stop; none comes after it.
      EXPECT_TRUE(text.starts_with(c.expected)) << model << ": " << text;
      Branch before = result.branch.at(result.branch.length() - 1);
      EXPECT_EQ(before.text().find(c.stop), std::string::npos) << model << ": " << text;
      std::string steps;
      for (const ThoughtRecord& step : result.path) steps += step.text;
      EXPECT_EQ(steps.substr(steps.size() - std::string(c.stop).size()), c.stop);
    }
  }
}

}  // namespace
}  // namespace dendrite
