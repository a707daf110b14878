// Searches whose root is under a constraint: every text is held to it, whatever the numerics say.
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "search/search_support.h"

namespace dendrite {
namespace {

using test::Tokens;

class ConstrainedTest : public ::testing::Test {
 protected:
  static bool matches(const std::string& text, const std::string& pattern) {
    return std::regex_match(text, std::regex(pattern));
  }

  Engine engine = test::load("llama2", {.prefix_index = false});
  Session session{engine, {.seed = 5}};
};

/// Two lines, and an end without one.
class ConstrainedStepsTest : public ConstrainedTest {
 protected:
  /// Deeper than texts go: what is whole before is a leaf, and nothing is proposed behind it.
  template <typename Strategy>
  SearchResult search(Strategy strategy) {
    strategy.depth = 5;
    strategy.steps.candidates = 2;
    SearchResult result = session.run_tree(strategy, "start\n", Constraint::regex(document));
    EXPECT_EQ(result.finish, Finish::kStop);
    for (const ThoughtRecord& thought : result.tree) {
      EXPECT_GT(thought.tokens, 0);
      EXPECT_TRUE(matches(thought.text, thought.depth < 3 ? "[a-c]{2,4}" : "[x-z]{3}!"))
          << thought.text << " at depth " << thought.depth;
    }
    EXPECT_EQ(result.path.size(), 3u);
    EXPECT_TRUE(result.branch.valid());
    if (result.branch.valid()) {
      EXPECT_TRUE(matches(result.branch.text(), document)) << result.branch.text();
      EXPECT_TRUE(result.branch.is_accepted());
      EXPECT_EQ(result.branch.constraint(), Constraint::regex(document));
    }
    return result;
  }

  const std::string document = "([a-c]{2,4}\n){2}[x-z]{3}!";
};

TEST_F(ConstrainedStepsTest, TreeOfThoughts) {
  const SearchResult result = search(TreeOfThoughts{.width = 4});
  double best = -INFINITY;
  for (const ThoughtRecord& thought : result.tree) {
    if (thought.depth == 3 && thought.kept) best = std::max(best, thought.value);
  }
  EXPECT_EQ(result.path.back().value, best);
}

TEST_F(ConstrainedStepsTest, DepthFirst) {
  const SearchResult result = search(DepthFirst{.max_nodes = 20});
  double best = -INFINITY;  // the best leaf, though those after it were seen as well
  int leaves = 0;
  for (const ThoughtRecord& thought : result.tree) {
    if (thought.depth < 3 || !thought.kept) continue;
    best = std::max(best, thought.value);
    ++leaves;
  }
  EXPECT_GT(leaves, 1);
  EXPECT_EQ(result.path.back().value, best);
}

TEST_F(ConstrainedStepsTest, BestFirst) {
  search(BestFirst{.batch = 4});
}

TEST_F(ConstrainedStepsTest, MctsBacksUpWhatAWholeTextIsWorth) {
  for (const int rollouts : {0, 2}) {
    Mcts strategy{.iterations = 90, .loss = -5, .rollouts = rollouts};
    const SearchResult result = search(strategy);
    int leaves = 0;
    for (const ThoughtRecord& thought : result.tree) {
      if (thought.visits == 0) continue;
      EXPECT_GT(thought.value, 0) << "it is no dead end";
      if (thought.depth < 3) continue;
      const double own = std::exp(thought.logprob / static_cast<double>(thought.tokens));
      EXPECT_NEAR(thought.value, own, 1e-9) << rollouts;
      ++leaves;
    }
    EXPECT_GT(leaves, 1);
  }
}

TEST_F(ConstrainedStepsTest, AThoughtWithoutStepsThatIsNotWholeIsADeadEnd) {
  DepthFirst strategy;
  strategy.depth = 5;
  strategy.steps.candidates = 2;
  strategy.steps.accept = [](const Branch&, const std::string& step) { return step.back() != '!'; };
  const SearchResult result = session.run_tree(strategy, "start\n", Constraint::regex(document));
  EXPECT_EQ(result.finish, Finish::kStop);
  EXPECT_FALSE(result.branch.valid());
}

TEST_F(ConstrainedTest, AnswersAndBeams) {
  const Constraint document = Constraint::regex("[a-c]{3,9}!");
  for (const bool first_success : {false, true}) {
    BestOfN best{.n = 4, .first_success = first_success};
    best.solved = [&](const Branch& branch, const std::string& text) {
      EXPECT_TRUE(matches(text, "[a-c]{3,9}!")) << text;
      return branch.text().size() > 100;
    };
    EXPECT_TRUE(session.run_tree(best, "start\n", document).branch.is_accepted());
  }
  for (const double confidence : {1.0, 0.9}) {
    const SelfConsistency votes{.n = 4, .confidence = confidence};
    const SearchResult result = session.run_tree(votes, "start\n", document);
    for (const Vote& vote : result.votes) EXPECT_TRUE(matches(vote.answer, "[a-c]{3,9}!"));
  }
  BeamSearch beams{.width = 3};
  const SearchResult result = session.run_tree(beams, "start\n", document);
  EXPECT_TRUE(matches(result.branch.text(), "[a-c]{3,9}!")) << result.branch.text();
  beams.constraint = Constraint::regex("[a-c]+");
  EXPECT_ERROR(session.run_tree(beams, "start\n", document), "expected one of the two");
}

TEST_F(ConstrainedTest, BeamsThatAStopEndsInsideComeLastAndAreNoSolutions) {
  BeamSearch beams{.width = 4, .max_tokens = 16};
  beams.solved = [](const Branch& branch, const std::string& text) {
    EXPECT_TRUE(matches(text, "[a-c]{2}(,[a-c]{2})?!")) << branch.text();
    return false;
  };
  const Constraint list = Constraint::regex("[a-c]{2}(,[a-c]{2})?!");
  for (const bool by_token : {false, true}) {
    beams.stop.clear();
    beams.stop_tokens.clear();
    if (by_token) {
      beams.stop_tokens = {engine.encode(",", false).back()};
    } else {
      beams.stop = {","};
    }
    const SearchResult result = session.run_tree(beams, "start\n", list);
    EXPECT_TRUE(matches(result.branch.text(), "[a-c]{2}!")) << result.branch.text();
    ASSERT_FALSE(result.others.empty());
    for (const Thought& other : result.others) {
      EXPECT_EQ(other.branch.is_accepted(), other.branch.text().ends_with("!"));
    }
    // Where each has to pass a comma, there is none of the form.
    const Constraint longer = Constraint::regex("[a-c]{2},[a-c]{2}!");
    EXPECT_TRUE(session.run_tree(beams, "start\n", longer).branch.text().ends_with(","));
  }
}

TEST_F(ConstrainedTest, EachDraftIsHeldToIt) {
  const std::string form = "[a-c]{5,6}!";
  Branch root = session.prefill("start\n");
  const std::int64_t prompt = root.length();
  root.constrain(Constraint::regex(form));
  const std::vector<Critique> critiques = {
      {.value = 1},                                         // whole: the next one begins behind it
      {.value = 2, .feedback = " no: "},                    // behind feedback as well
      {.value = 3, .feedback = "again: ", .keep = prompt},  // here in place of it
      {.value = 4, .keep = prompt + 9},                     // goes on inside of it
      {.value = 5}};
  const std::vector<std::string> forms = {form, form + form, form + form + " no: " + form,
                                          "again: " + form, "again: " + form};
  std::vector<std::string> texts;
  SelfRefinement strategy;
  strategy.draft = {.temperature = 1.0};
  strategy.rounds = 4;
  const std::int64_t feedback = std::ssize(engine.encode("again: ", false));
  strategy.criticise = [&](Session&, std::span<Branch> drafts) {
    const std::size_t i = texts.size();
    texts.push_back(drafts[0].text());
    EXPECT_TRUE(drafts[0].is_accepted());
    Critique critique = critiques[i];
    if (i == 3) critique.keep = prompt + feedback + 1;
    return std::vector<Critique>{critique};
  };
  const SearchResult result = run(session, std::move(root), strategy);
  EXPECT_EQ(result.finish, Finish::kStop);
  ASSERT_EQ(texts.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_TRUE(matches(texts[i], forms[i])) << texts[i];
  EXPECT_EQ(texts[4].substr(0, 8), texts[3].substr(0, 8));  // what was kept of it
}

TEST_F(ConstrainedTest, ADraftThatWasCutGoesOn) {
  SelfRefinement strategy;
  strategy.draft = {.max_tokens = 2, .temperature = 1.0};
  strategy.revision = {.temperature = 1.0};
  strategy.rounds = 1;
  strategy.criticise = [](Session&, std::span<Branch> drafts) {
    return std::vector<Critique>{{.value = static_cast<double>(drafts[0].length())}};
  };
  const SearchResult result =
      session.run_tree(strategy, "start\n", Constraint::regex("[a-c]{30}!"));
  EXPECT_TRUE(matches(result.branch.text(), "[a-c]{30}!")) << result.branch.text();
}

class ConstrainedForkJoinTest : public ConstrainedTest {
 protected:
  ConstrainedForkJoinTest() {
    strategy.open = "<f>";
    strategy.close = "</c>";
    strategy.children = 3;
    strategy.max_forks = 2;
    strategy.trunk = strategy.child = {.max_tokens = 90, .temperature = 1.0};
    strategy.join.repair = {.first = 2};
    strategy.join.before_each = "|";
    strategy.join.after_all = "=";
  }
  std::string text_of(const SearchResult& result) {
    Tokens all = result.branch.tokens();
    all.erase(all.begin(), all.begin() + std::ssize(engine.encode("start\n")));
    return engine.decode(all);
  }
  ForkJoin strategy;
};

TEST_F(ConstrainedForkJoinTest, TheJoinedTextIsHeldToIt) {
  const std::string form = R"(([a-c]{4,6}<f>[k-z]{3,5}</c>(\|[k-z]{3,5}</c>){2}=){2}[a-c]{2,4}!)";
  const SearchResult result = session.run_tree(strategy, "start\n", Constraint::regex(form));
  EXPECT_EQ(result.finish, Finish::kStop);
  EXPECT_EQ(result.joins.size(), 2u);
  EXPECT_EQ(result.tree.size(), 9u);
  ASSERT_TRUE(result.branch.valid());
  EXPECT_TRUE(matches(text_of(result), form)) << text_of(result);
  EXPECT_EQ(result.branch.constraint(), Constraint::regex(form));
  EXPECT_TRUE(result.branch.is_accepted());
}

TEST_F(ConstrainedForkJoinTest, ChildrenInsideOfChildrenAreToo) {
  strategy.nesting = 2;
  strategy.children = 2;
  const std::string inner = R"([p-t]{2,3}<f>[k-o]{2,3}</c>\|[k-o]{2,3}</c>=[p-t]{2,3}</c>)";
  const std::string form = "[a-c]{2}<f>" + inner + R"(\|)" + inner + "=[a-c]{2}!";
  strategy.max_forks = 3;
  const SearchResult result = session.run_tree(strategy, "start\n", Constraint::regex(form));
  EXPECT_EQ(result.finish, Finish::kStop);
  EXPECT_EQ(result.joins.size(), 3u);
  EXPECT_TRUE(matches(text_of(result), form)) << text_of(result);
}

TEST_F(ConstrainedForkJoinTest, WhereItRefusesTheJoinedTextTheSearchIsAtADeadEnd) {
  // No other child may follow the first one.
  const SearchResult result = session.run_tree(
      strategy, "start\n", Constraint::regex("[a-c]{4,6}<f>[k-z]{3,5}</c>[a-c]{2}"));
  EXPECT_EQ(result.finish, Finish::kDeadEnd);
  EXPECT_FALSE(result.solved);
  EXPECT_TRUE(result.joins.empty());
  EXPECT_TRUE(matches(text_of(result), "[a-c]{4,6}<f>")) << text_of(result);
}

}  // namespace
}  // namespace dendrite
