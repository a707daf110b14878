#include <gtest/gtest.h>

#include <set>

#include "search/search_support.h"

namespace dendrite {
namespace {

using test::Tokens;
using test::Transcript;

class RefinementTest : public ::testing::Test {
 protected:
  RefinementTest() {
    strategy.draft = {.max_tokens = 10, .temperature = 1.0, .ignore_eos = true};
    strategy.criticise = [this](Session&, std::span<Branch> drafts) {
      std::vector<Critique> out;
      for (const Branch& draft : drafts) {
        seen.push_back(draft.tokens());
        out.push_back(critiques.at(seen.size() - 1));
      }
      return out;
    };
  }

  static Tokens first(const Tokens& tokens, std::int64_t count) {
    return {tokens.begin(), tokens.begin() + count};
  }

  Engine engine = test::load("llama2", {.prefix_index = false});
  Session session{engine, {.seed = 2}};
  SelfRefinement strategy;
  std::vector<Critique> critiques;
  std::vector<Tokens> seen;  // drafts that were criticised
};

TEST_F(RefinementTest, KeepsTheBestDraftOfAllRounds) {
  strategy.rounds = 3;
  critiques = {{.value = 1}, {.value = 5}, {.value = std::nan("")}, {.value = 5}};
  const SearchResult result = session.run_tree(strategy, "start\n");
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(result.branch.tokens(), seen[1]);
  EXPECT_EQ(result.path.size(), 2u);
  EXPECT_EQ(result.path[1].value, 5);
  EXPECT_EQ(result.path[1].branch_id, result.branch.id());
  EXPECT_FALSE(result.solved);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(result.tree[i].parent, result.tree[i - 1].node);
    EXPECT_EQ(first(seen[i], std::ssize(seen[i - 1])), seen[i - 1]);  // nothing was taken back
  }
  EXPECT_EQ(session.stats().branches_live, 1);
}

TEST_F(RefinementTest, ARevisionStartsWhereTheCriticSaysAfterItsFeedback) {
  strategy.rounds = 2;
  Branch root = session.prefill("start\n");
  const std::int64_t prompt = root.length();
  critiques = {{.value = 1, .feedback = "no:", .keep = prompt + 4}, {.keep = prompt}, {}};
  const std::int64_t computed = session.stats().tokens_computed;
  run(session, std::move(root), strategy);
  const Tokens feedback = engine.encode("no:", false);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(first(seen[1], prompt + 4), first(seen[0], prompt + 4));
  EXPECT_EQ(seen[1].size(), static_cast<std::size_t>(prompt) + 4 + feedback.size() + 10);
  EXPECT_EQ(
      Tokens(seen[1].begin() + prompt + 4, seen[1].begin() + prompt + 4 + std::ssize(feedback)),
      feedback);
  EXPECT_EQ(std::ssize(seen[2]), prompt + 10);
  EXPECT_NE(seen[2], seen[0]);
  // The third draft begins afresh, and computes again what it draws as the others did.
  const auto same = std::mismatch(seen[2].begin(), seen[2].end(), seen[1].begin()).first;
  EXPECT_EQ(session.stats().tokens_redundant, same - seen[2].begin() - prompt);
  // Nine rows a draft, whose last token is never computed, and the feedback's.
  EXPECT_EQ(session.stats().tokens_computed - computed, 3 * 9 + std::ssize(feedback));
}

TEST_F(RefinementTest, ChainsGoSideBySide) {
  strategy.rounds = 1;
  strategy.drafts = 3;
  critiques = {{.value = 1}, {.value = 2}, {.value = 3}, {.value = 0}, {.value = 9}, {.value = 0}};
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(result.branch.tokens(), seen[4]);
  EXPECT_EQ(result.path[0].node, result.tree[1].node);
  EXPECT_LE(session.stats().steps, 20);
  std::set<Tokens> different(seen.begin(), seen.end());
  EXPECT_EQ(different.size(), 6u);
}

TEST_F(RefinementTest, ASolutionEndsIt) {
  critiques = {{.value = 9}, {.value = 1, .good = true}};
  SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_TRUE(result.solved);
  EXPECT_EQ(result.branch.tokens(), seen[1]);
  EXPECT_EQ(result.path.back().node, result.tree[1].node);
  seen.clear();
  critiques = {{}, {}, {}};
  strategy.solved = [this](const Branch&, const std::string&) { return seen.size() == 3; };
  result = session.run_tree(strategy, "start\n");
  EXPECT_TRUE(result.solved);
  EXPECT_EQ(result.path.size(), 3u);
}

TEST_F(RefinementTest, TellsTheSameWhateverTheThreadsAndPages) {
  std::string expected;
  for (const EngineOptions& options :
       {EngineOptions{.threads = 1}, EngineOptions{.threads = 3, .page_tokens = 8},
        EngineOptions{.threads = 2, .kv_tokens = 160}}) {
    Engine other = test::load("llama2", options);
    Session s(other, {.seed = 3});
    Transcript transcript;
    strategy.drafts = 4;
    strategy.revision = DecodeParams{.max_tokens = 7, .temperature = 2.0, .ignore_eos = true};
    strategy.on_event = transcript.reader();
    strategy.criticise = [](Session&, std::span<Branch> drafts) {
      std::vector<Critique> out;
      for (const Branch& draft : drafts) {
        out.push_back({.value = static_cast<double>(draft.last_token()),
                       .feedback = "x",
                       .keep = draft.length() - 3});
      }
      return out;
    };
    SearchResult result = s.run_tree(strategy, "start\n");
    if (expected.empty()) expected = transcript.with(result);
    EXPECT_EQ(transcript.with(result), expected);
    result = {};
    test::expect_all_pages_free(other);
  }
}

TEST_F(RefinementTest, EndsWithTheBudgetAndWithCancellation) {
  critiques.resize(100);
  for (const std::int64_t tokens : {3, 10, 30}) {
    Session poor(engine, {.budget = {.tokens = tokens}});
    EXPECT_EQ(poor.run_tree(strategy, "start\n").finish, Finish::kBudget);
    EXPECT_LE(poor.stats().tokens_computed, tokens);
  }
  std::stop_source source;
  strategy.cancel = source.get_token();
  strategy.on_event = [&](const SearchEvent& event) {
    if (event.thought->depth == 2) source.request_stop();
  };
  const SearchResult result = session.run_tree(strategy, "start\n");
  EXPECT_EQ(result.finish, Finish::kCancelled);
  EXPECT_TRUE(result.branch.valid());  // the best of what was criticised
}

TEST_F(RefinementTest, RefusesWhatItCannotDo) {
  critiques = {{.keep = 100}};
  EXPECT_ERROR(session.run_tree(strategy, "start\n"), "keeps 100 tokens; expected 0 or");
  strategy.criticise = [](Session&, std::span<Branch>) { return std::vector<Critique>(3); };
  EXPECT_ERROR(session.run_tree(strategy, "start\n"), "criticise returned 3 critiques; expected 1");
  strategy.criticise = {};
  EXPECT_ERROR(session.run_tree(strategy, "start\n"), "criticise is not set");
}

}  // namespace
}  // namespace dendrite
