// Branches under constraints: decode, fork, at, append, score, expand, select, snapshots.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "support/engine_support.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

using nlohmann::json;
using test::load;
using test::Random;
using test::Tokens;

Constraint point() {
  return Constraint::json_schema(
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":6},)"
      R"("x":{"type":"integer","minimum":0,"maximum":99},"kind":{"enum":["dot","square"]}},)"
      R"("required":["name","x","kind"],"additionalProperties":false})");
}

bool is_point(const std::string& text) {
  const json value = json::parse(text, nullptr, false);
  return value.is_object() && value.size() == 3 && value.contains("name") &&
         value["name"].is_string() && value.contains("x") && value["x"].is_number_integer() &&
         value["x"] >= 0 && value["x"] <= 99 && value.contains("kind") &&
         (value["kind"] == "dot" || value["kind"] == "square");
}

DecodeParams drawn(double temperature, std::int64_t max_tokens = 200) {
  return {.max_tokens = max_tokens, .temperature = temperature};
}

/// Where the backend samples, and where it does not.
class ConstraintTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string device() {
    const std::string wanted = GetParam();
    return wanted == "sampling" && test::on_cuda() ? "cuda" : wanted;
  }
  Engine engine_ = load("qwen3", {}, device());
  Session session_{engine_, {.seed = 3}};
  Branch root_ = session_.prefill("A point: ");
};

INSTANTIATE_TEST_SUITE_P(Devices, ConstraintTest, ::testing::Values("", "sampling"));

TEST_P(ConstraintTest, EveryTextThatEndsIsValid) {
  for (const double temperature : {0.0, 0.5, 1.0, 2.0}) {
    std::vector<Branch> branches = root_.fork(test::scaled(8));
    DecodeParams params = drawn(temperature);
    params.constraint = point();
    for (const Generation& out : session_.decode(branches, params)) {
      EXPECT_EQ(out.finish, Finish::kStop);
      EXPECT_TRUE(is_point(out.text)) << out.text;
    }
    for (const Branch& branch : branches) EXPECT_FALSE(branch.constraint());  // for the call alone
  }
}

TEST_P(ConstraintTest, MaxTokensInsideIsTold) {
  DecodeParams params = drawn(1, 5);
  params.constraint = point();
  Branch branch = root_.fork();
  EXPECT_EQ(session_.decode(branch, params).finish, Finish::kLength);
  EXPECT_EQ(branch.length(), root_.length() + 5);
}

TEST_P(ConstraintTest, AForkGoesOnAsAReplayWould) {
  Branch branch = root_.fork();
  branch.constrain(point());
  for (int i = 0; i < test::scaled(20); ++i) {
    const Generation begun = session_.decode(branch, drawn(1, 7));
    Branch fork = branch.fork();
    Branch replayed =
        session_.prefill(root_.tokens(), {.stream = fork.stream(), .add_special = false});
    replayed.constrain(point());
    const Tokens tokens = fork.tokens();
    replayed.append(std::span(tokens).subspan(static_cast<std::size_t>(root_.length())));
    const Generation a = session_.decode(fork, drawn(1));
    const Generation b = session_.decode(replayed, drawn(1));
    EXPECT_EQ(a.ids, b.ids);
    EXPECT_EQ(a.finish, b.finish);
    EXPECT_EQ(a.finish, Finish::kStop);
    if (begun.finish != Finish::kLength) branch = root_.fork(), branch.constrain(point());
  }
}

TEST_P(ConstraintTest, CallsOfOneTokenGiveTheSame) {
  const auto whole_call = [&](int top_logprobs) {
    Branch branch = root_.fork({.stream = 5});
    branch.constrain(point());
    DecodeParams params = drawn(1);
    params.top_logprobs = top_logprobs;
    const Generation out = session_.decode(branch, params);
    return std::tuple(out.ids, out.finish, branch.logprob());
  };
  const auto whole = whole_call(-1);
  EXPECT_EQ(whole_call(2), whole);  // where no token is taken without a step
  Branch branch = root_.fork({.stream = 5});
  branch.constrain(point());
  Tokens ids;
  while (const auto token = session_.decode_step(branch, drawn(1))) ids.push_back(*token);
  EXPECT_EQ(ids, std::get<0>(whole));
  EXPECT_EQ(branch.finish(), Finish::kStop);
  EXPECT_EQ(branch.logprob(), std::get<2>(whole));
}

TEST_P(ConstraintTest, ForcedTokensTakeNoStepsOfTheirOwn) {
  const Stats before = session_.stats();
  DecodeParams params = drawn(1);
  params.constraint = Constraint::regex("The answer is [0-9], and that is all there is to say.");
  const Generation out = session_.decode(root_, params);
  EXPECT_EQ(out.finish, Finish::kStop);
  EXPECT_GT(out.ids.size(), 10u);
  EXPECT_LE(session_.stats().steps - before.steps, 3);
  EXPECT_EQ(root_.text(), out.text);
  EXPECT_EQ(root_.length(), std::ssize(root_.tokens()));
  root_.unconstrain();
  EXPECT_EQ(session_.decode(root_, drawn(1, 3)).ids.size(), 3u);
}

TEST_P(ConstraintTest, LogprobsAreTheModelsOwn) {
  Branch branch = root_.fork();
  DecodeParams params = drawn(1);
  params.constraint = point();
  params.top_logprobs = 0;
  const Generation out = session_.decode(branch, params);
  ASSERT_EQ(out.logprobs.size(), out.ids.size());
  const Score score = root_.score_tokens({out.ids}).front();
  for (std::size_t i = 0; i < out.ids.size(); ++i) {
    EXPECT_EQ(out.logprobs[i].id, out.ids[i]);
    EXPECT_EQ(out.logprobs[i].logprob, score.tokens[i]);
  }
}

TEST_P(ConstraintTest, APastIsUnderWhatHeldThen) {
  Branch branch = root_.fork();
  branch.constrain(point());
  const Generation first = session_.decode(branch, drawn(1));
  branch.unconstrain();
  session_.decode(branch, drawn(1, 3));
  branch.constrain(Constraint::regex("[a-z]{5}"));
  session_.decode(branch, drawn(1));
  const std::int64_t begin = root_.length();
  Branch inside = branch.at(begin + std::ssize(first.ids) / 2);
  ASSERT_TRUE(inside.constraint());
  EXPECT_EQ(*inside.constraint(), point());
  EXPECT_EQ(session_.decode(inside, drawn(1)).finish, Finish::kStop);
  EXPECT_TRUE(is_point(inside.text())) << inside.text();
  EXPECT_FALSE(branch.at(begin + std::ssize(first.ids) + 1).constraint());
  EXPECT_EQ(branch.at(branch.length()).constraint()->kind(), Constraint::Kind::kRegex);
  EXPECT_FALSE(branch.at(begin - 1).constraint());
}

TEST_P(ConstraintTest, AppendRefusesWhatCannotFollow) {
  Branch branch = root_.fork();
  branch.constrain(Constraint::regex("ab?c"));
  const std::int64_t length = branch.length();
  EXPECT_THROW(branch.append("ax"), Error);
  EXPECT_EQ(branch.length(), length);
  branch.append("ab");
  EXPECT_FALSE(branch.is_accepted());
  branch.append("c");
  EXPECT_TRUE(branch.is_accepted());
  EXPECT_EQ(session_.decode(branch, drawn(1)).ids.size(), 0u);
  EXPECT_EQ(branch.finish(), Finish::kStop);
}

/// At every step of a text: what next_tokens gives and append takes, and nothing else.
TEST_P(ConstraintTest, AllowedTokensAreThoseThatAreTaken) {
  EXPECT_EQ(root_.allowed_tokens(), std::nullopt);
  Branch branch = root_.fork();
  branch.constrain(Constraint::regex("a[b-d]{1,3}( e)?"));
  const auto& eos = engine_.info().eos;
  ASSERT_FALSE(eos.empty());
  for (int step = 0; step < 8; ++step) {
    const auto allowed = branch.allowed_tokens();
    ASSERT_TRUE(allowed.has_value());
    EXPECT_TRUE(std::ranges::is_sorted(*allowed));
    EXPECT_EQ(std::ranges::count(*allowed, eos[0]), branch.is_accepted() ? 1 : 0);
    const auto takes = [&](Token token) {
      Branch fork = branch.fork();
      try {
        fork.append(std::span(&token, 1));
      } catch (const Error&) {
        return false;
      }
      return true;
    };
    for (Token token = 0; token < engine_.info().vocab; ++token) {
      EXPECT_EQ(std::ranges::binary_search(*allowed, token), takes(token)) << token;
    }
    std::vector<Token> given;
    const int all = static_cast<int>(engine_.info().vocab);
    const auto next = session_.next_tokens(std::span<const Branch>(&branch, 1), {.top = all});
    for (const TokenLogprob& token : next[0]) given.push_back(token.id);
    std::ranges::sort(given);
    EXPECT_EQ(*allowed, given);
    if (session_.decode(branch, drawn(1, 1)).finish != Finish::kLength) break;
  }
  branch.unconstrain();
  EXPECT_EQ(branch.allowed_tokens(), std::nullopt);
}

TEST_P(ConstraintTest, ScoresAreMinusInfinityFromWhereTheyAreRefused) {
  Branch branch = root_.fork();
  const Tokens good = engine_.encode("ab", false);
  const Tokens bad = engine_.encode("aX", false);
  const std::vector<Score> free = branch.score_tokens({good, bad});
  branch.constrain(Constraint::regex("a[b-z]"));
  const std::vector<Score> scores = branch.score_tokens({good, bad});
  EXPECT_EQ(scores[0].tokens, free[0].tokens);
  EXPECT_EQ(scores[0].logprob, free[0].logprob);
  EXPECT_EQ(scores[1].tokens.front(), free[1].tokens.front());
  EXPECT_TRUE(std::isinf(scores[1].tokens.back()) && std::isinf(scores[1].logprob));
  EXPECT_EQ(branch.select({"aX", "ab", "b"}), 1u);
  Branch other = root_.fork();
  other.constrain(Constraint::regex("q+"));
  EXPECT_EQ(other.select({"a", "b"}), std::nullopt);
  EXPECT_EQ(other.finish(), Finish::kDeadEnd);
}

TEST_P(ConstraintTest, ChildrenAreWhatTheConstraintAllows) {
  Branch branch = root_.fork();
  branch.constrain(Constraint::regex("[a-c]{2}"));
  std::vector<Branch> level;
  level.push_back(std::move(branch));
  for (int depth = 0; depth < 2; ++depth) {
    std::vector<Branch> next;
    for (auto& children : session_.expand(level, {.top = 50})) {
      EXPECT_GT(children.size(), 0u);
      for (Branch& child : children) next.push_back(std::move(child));
    }
    level = std::move(next);
  }
  int whole = 0;
  for (Branch& each : level) {
    const std::string text = each.text();
    EXPECT_EQ(text.find_first_not_of("abc"), std::string::npos) << text;
    whole += each.is_accepted() ? 1 : 0;
  }
  EXPECT_GE(whole, 9);
  Branch strict = root_.fork();
  strict.constrain(Constraint::regex("[a-c]{2}"));
  const std::vector<TokenLogprob> refused[] = {{{engine_.encode("z", false).front(), -1}}};
  EXPECT_THROW(session_.children(std::span(&strict, 1), refused), Error);
}

TEST_P(ConstraintTest, TokensDrawnAheadObeyIt) {
  std::vector<Branch> likely = root_.fork(3);
  std::vector<Branch> alone;
  for (const Branch& branch : likely) alone.push_back(root_.fork({.stream = branch.stream()}));
  DecodeParams params = drawn(1);
  params.constraint = point();
  params.slack = std::numeric_limits<double>::infinity();
  params.max_tokens = 6;
  session_.decode(std::span<Branch>(), params, likely);
  params.max_tokens = 200;
  const auto taken = session_.decode(likely, params);
  const auto expected = session_.decode(alone, params);
  for (std::size_t i = 0; i < taken.size(); ++i) {
    EXPECT_EQ(taken[i].ids, expected[i].ids);
    EXPECT_TRUE(is_point(taken[i].text)) << taken[i].text;
  }
  EXPECT_GT(session_.stats().tokens_taken, 0);
  // What was drawn under another one is of no use.
  std::vector<Branch> others = root_.fork(1);
  session_.decode(std::span<Branch>(), params, others);
  params.constraint = Constraint::regex("[0-9]{3}");
  EXPECT_EQ(session_.decode(others, params).front().text.find_first_not_of("0123456789"),
            std::string::npos);
}

TEST_P(ConstraintTest, StreamsAndOthersInTheSameStepsChangeNothing) {
  DecodeParams params = drawn(1);
  params.constraint = point();
  Branch lone = root_.fork({.stream = 9});
  const Generation expected = session_.decode(lone, params);
  PendingDecode other = session_.submit_decode(root_.fork(5), drawn(1, 300));
  PendingDecode call = session_.submit_decode(root_.fork({.stream = 9}), params);
  std::string text;
  Tokens ids;
  while (const auto token = call.next()) {
    ids.push_back(token->token);
    text += token->text;
  }
  EXPECT_EQ(ids, expected.ids);
  EXPECT_EQ(text, expected.text);
}

TEST_P(ConstraintTest, ASnapshotKeepsIt) {
  Branch branch = root_.fork();
  branch.constrain(point());
  session_.decode(branch, drawn(1, 8));
  Branch* const one[] = {&branch};
  const std::vector<std::byte> bytes = session_.snapshot(one);
  const Generation expected = session_.decode(branch, drawn(1));
  Restored restored = engine_.restore(bytes);
  ASSERT_EQ(restored.branches.front().constraint(), point());
  EXPECT_EQ(restored.session.decode(restored.branches.front(), drawn(1)).ids, expected.ids);
  EXPECT_FALSE(restored.branches.front().at(root_.length() - 1).constraint());
}

TEST_P(ConstraintTest, OneOfTheBranchsAndOneOfTheCallsAreTooMany) {
  Branch branch = root_.fork();
  branch.constrain(point());
  DecodeParams params = drawn(1);
  params.constraint = point();
  EXPECT_THROW(session_.decode(branch, params), Error);
  branch.unconstrain();
  EXPECT_EQ(session_.decode(branch, params).finish, Finish::kStop);
}

TEST_P(ConstraintTest, HoldsFromATokenOnThatTheBranchHas) {
  const Constraint form = Constraint::regex("[a-c]{4}![x-z]{4}");
  Branch branch = root_.fork();
  branch.append("ab");
  const std::int64_t begin = root_.length();
  EXPECT_FALSE(branch.constraint_begin());
  EXPECT_FALSE(branch.constrain_from(form, begin - 1));  // refused: nothing has changed
  EXPECT_FALSE(branch.constraint());
  ASSERT_TRUE(branch.constrain_from(form, begin));
  EXPECT_EQ(branch.constraint_begin(), begin);
  Branch asked = root_.fork({.stream = branch.stream()});  // asked from there on, it is the same
  asked.constrain(form);
  EXPECT_EQ(asked.constraint_begin(), asked.length());
  asked.append("ab");
  const Generation out = session_.decode(branch, drawn(1));
  EXPECT_EQ(out.finish, Finish::kStop);
  EXPECT_EQ(out.ids, session_.decode(asked, drawn(1)).ids);
  EXPECT_TRUE(branch.is_accepted());
  // The past from there on is under it, what was before is as it was.
  EXPECT_EQ(branch.at(begin + 1).constraint(), form);
  EXPECT_FALSE(branch.at(begin - 1).constraint());
  branch.constrain(point());
  ASSERT_TRUE(branch.constrain_from(form, begin));
  EXPECT_TRUE(branch.is_accepted());
  EXPECT_EQ(branch.at(branch.length()).constraint(), form);
  EXPECT_ERROR(branch.constrain_from(form, branch.length() + 1), "expected 0 to");
  EXPECT_ERROR(branch.constrain_from(form, -1), "begin is -1");
}

TEST_P(ConstraintTest, ABeamOfValidTexts) {
  BeamSearch beam;
  beam.width = 6;
  beam.max_tokens = 60;
  beam.constraint = Constraint::regex("(red|green|blue) (car|house)");
  const SearchResult result = run(session_, root_.fork(), beam);
  EXPECT_EQ(result.others.size(), 5u);
  std::vector<std::string> texts{result.branch.text()};
  for (const Thought& other : result.others) texts.push_back(other.branch.text());
  std::ranges::sort(texts);
  const std::vector<std::string> expected = {"blue car",    "blue house", "green car",
                                             "green house", "red car",    "red house"};
  EXPECT_EQ(texts, expected);
}

/// One of this model's end-of-sequence tokens is a word to its tokenizer.
TEST_P(ConstraintTest, OneThatCostsTooMuchEndsAlone) {
  // Compiled in no time; after a few tokens there are more ways to go on than its limits admit.
  const Constraint hostile = Constraint::regex("[xy]{9}(a{1,60}){40,80}b");
  const auto decode = [&](bool with_hostile) {
    std::vector<Branch> branches = root_.fork(3);
    branches[1].constrain(point());
    if (with_hostile) branches[2].constrain(hostile);
    std::vector<Branch*> wanted = {&branches[0], &branches[1]};
    if (with_hostile) wanted.push_back(&branches[2]);
    return session_.decode(wanted, drawn(0, 120));
  };
  const std::vector<Generation> alone = decode(false);
  const std::vector<Generation> beside = decode(true);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(beside[i].ids, alone[i].ids);
    EXPECT_EQ(beside[i].finish, alone[i].finish);
  }
  EXPECT_EQ(beside[2].finish, Finish::kDeadEnd) << beside[2].text;
}

TEST(ConstraintTextTest, HasNoEndInIt) {
  const Engine engine = load("llama3_tied");
  Session session(engine);
  Branch root = session.prefill("x");
  std::vector<Branch> branches = root.fork(32);
  DecodeParams params = drawn(2, 40);
  params.constraint = Constraint::regex("[0-9]{1,30}");
  int ended = 0;
  for (const Generation& out : session.decode(branches, params)) {
    EXPECT_EQ(out.text.find_first_not_of("0123456789"), std::string::npos) << out.text;
    ended += std::ranges::count(engine.info().eos, out.ids.back()) > 0 ? 1 : 0;
  }
  EXPECT_GT(ended, 0);
}

TEST(ConstraintErrorsTest, AreClear) {
  const Engine engine = load("qwen3");
  EXPECT_THROW(engine.check(Constraint::json_schema("{\"type\":\"nothing\"}")), ConstraintError);
  EXPECT_NO_THROW(engine.check(Constraint::json_object()));
  const Engine no_tokenizer = load("tinyllama");
  EXPECT_THROW(no_tokenizer.check(Constraint::json_object()), Error);
}

}  // namespace
}  // namespace dendrite
