// What a stop string or a stop token means beside a constraint, and tokens that a bias bans. All
// texts here are the only ones that constraint and bias leave: none rests on what a model samples.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "dendrite/error.h"
#include "support/engine_support.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

using test::load;
using test::Tokens;

constexpr float kBan = -std::numeric_limits<float>::infinity();

struct Case {
  std::string regex;
  std::string stop;
  std::string text;  // that is left
  Finish finish;
};

const Case kCases[] = {
    {R"(\{"name":\{"a":1\}\})", ":", R"({"name")", Finish::kStopInside},
    {R"(\{"name":\{"a":1\}\})", "\"a\":", R"({"name":{)", Finish::kStopInside},
    // Whole with the stop string, and not without; without, and not with it; with and without.
    {"ab;", ";", "ab", Finish::kStopInside},
    {"one(;[0-9]{30})?", ";", "one", Finish::kStopInside},
    {"one(;)?", ";", "one", Finish::kStop},
    {"one;[0-9]{30}", ";", "one", Finish::kStopInside},
    // A stop string that begins inside of a token, or of a character's bytes.
    {"hello w(orld)?", "orld", "hello w", Finish::kStop},
    {"hello wo(rld)?", "orld", "hello w", Finish::kStopInside},
    {"hello( world)?", " world", "hello", Finish::kStop},
    {"hello( world!)?", "orld!", "hello w", Finish::kStopInside},
    {"foo(;x)?", ";", "foo", Finish::kStop},
    {"fo(o;x)?", ";", "foo", Finish::kStopInside},
    {"x\u00e9(\u00e9)?", "\u00e9\u00e9", "x", Finish::kStopInside},
    {"x(\u00e9\u00e9)?", "\u00e9\u00e9", "x", Finish::kStop},
    // Nothing is left: may the text be empty?
    {"(stop)?", "stop", "", Finish::kStop},
    {"stop", "stop", "", Finish::kStopInside},
};

/// The tiny model, whose tokens are bytes, with these texts as tokens, too, in the place of some
/// that mean nothing.
const char* const kWords[] = {" world", "o;x", "xyza"};

std::string copy_with_words(const std::filesystem::path& folder) {
  std::filesystem::copy(test::model_path("qwen3"), folder,
                        std::filesystem::copy_options::recursive);
  const std::filesystem::path file = folder / "tokenizer.json";
  nlohmann::json tokenizer = nlohmann::json::parse(std::ifstream(file));
  std::size_t next = 0;
  for (nlohmann::json& token : tokenizer["added_tokens"]) {
    if (!token["content"].get<std::string>().starts_with("<|extra_")) continue;
    if (next == std::size(kWords)) break;
    token["content"] = kWords[next++];
    token["special"] = false;
  }
  std::filesystem::remove(file);
  std::ofstream(file) << tokenizer;
  return folder.string();
}

/// How a constraint reaches a branch.
enum class By { kCall, kBranch, kFork, kCallsOfOneToken };

class ConstraintStopTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string device() {
    const std::string wanted = GetParam();
    return wanted == "sampling" && test::on_cuda() ? "cuda" : wanted;
  }

  /// Never ends by an end-of-sequence token, and takes words for their tokens.
  DecodeParams params(const std::string& stop = {}) {
    DecodeParams params{.max_tokens = 60, .temperature = 1};
    if (!stop.empty()) params.stop = {stop};
    for (const Token end : engine_.info().eos) params.logit_bias.emplace_back(end, kBan);
    for (const char* word : kWords) params.logit_bias.emplace_back(id_of(word), 1000.0f);
    return params;
  }

  Token id_of(const std::string& word) {
    const Tokens ids = engine_.encode(word, false);
    EXPECT_EQ(ids.size(), 1u) << word;
    return ids.front();
  }

  Generation decode(Branch& branch, const std::string& regex, DecodeParams params, By by) {
    const Constraint constraint = Constraint::regex(regex);
    if (by == By::kCall) {
      params.constraint = constraint;
      return session_.decode(branch, params);
    }
    branch.constrain(constraint);
    if (by == By::kFork) branch = branch.fork();
    if (by != By::kCallsOfOneToken) return session_.decode(branch, params);
    Generation all;
    for (int i = 0; i < 60 && all.finish != Finish::kStop && all.finish != Finish::kStopInside;
         ++i) {
      params.max_tokens = 1;
      const Generation one = session_.decode(branch, params);
      all.text += one.text;
      all.finish = one.finish;
    }
    return all;
  }

  const TemporaryFolder folder_;
  Engine engine_ = load(copy_with_words(folder_.path() / "model"), {}, device());
  Session session_{engine_, {.seed = 3}};
  Branch root_ = session_.prefill("A text: ");
};

INSTANTIATE_TEST_SUITE_P(Devices, ConstraintStopTest, ::testing::Values("", "sampling"));

TEST_P(ConstraintStopTest, StopIsWholeTextAlone) {
  for (const Case& c : kCases) {
    for (const By by : {By::kCall, By::kBranch, By::kFork}) {
      for (const Speculate speculate : {Speculate::kOff, Speculate::kSuffix}) {
        Branch branch = root_.fork();
        DecodeParams wanted = params(c.stop);
        wanted.speculate = speculate;
        const Generation got = decode(branch, c.regex, wanted, by);
        EXPECT_EQ(got.text, c.text) << c.regex;
        EXPECT_EQ(got.finish, c.finish) << c.regex << ", " << name_of(got.finish);
        EXPECT_EQ(branch.finish(), got.finish);
        EXPECT_TRUE(got.finish != Finish::kStop || branch.is_accepted()) << c.regex;
      }
    }
  }
}

TEST_P(ConstraintStopTest, CallsOfOneTokenSayTheSame) {
  for (const Case& c : kCases) {
    if (c.stop.size() > 1) continue;  // (Found in one call's text.)
    Branch branch = root_.fork();
    const Generation got = decode(branch, c.regex, params(c.stop), By::kCallsOfOneToken);
    EXPECT_EQ(got.text, c.text) << c.regex;
    EXPECT_EQ(got.finish, c.finish) << c.regex << ", " << name_of(got.finish);
  }
}

TEST_P(ConstraintStopTest, SoDoesAStopTokenWithWhatItAdds) {
  const Token world = id_of(" world");
  const std::pair<const char*, Finish> cases[] = {{"hello world", Finish::kStop},
                                                  {"hello( world){1,5}", Finish::kStop},
                                                  {"hello world!", Finish::kStopInside},
                                                  {"hello( world){2}", Finish::kStopInside}};
  for (const auto& [regex, finish] : cases) {
    Branch branch = root_.fork();
    DecodeParams wanted = params();
    wanted.stop_tokens = {world};
    const Generation got = decode(branch, regex, wanted, By::kBranch);
    EXPECT_EQ(got.text, "hello world");
    EXPECT_EQ(got.finish, finish) << regex << ", " << name_of(got.finish);
    EXPECT_EQ(branch.is_accepted(), finish == Finish::kStop);
  }
}

TEST_P(ConstraintStopTest, AnEndOfSequenceAmongTheStopTokensComesWhereTheTextMayEnd) {
  for (const bool ignore_eos : {false, true}) {
    Branch branch = root_.fork();
    DecodeParams wanted{.max_tokens = 60, .temperature = 1, .ignore_eos = ignore_eos};
    for (const Token end : engine_.info().eos) wanted.logit_bias.emplace_back(end, 1000.0f);
    wanted.stop_tokens = engine_.info().eos;
    const Generation got = decode(branch, "abc(def)*", wanted, By::kBranch);
    EXPECT_EQ(got.text, "abc");
    EXPECT_EQ(got.finish, Finish::kStop);
  }
}

TEST_P(ConstraintStopTest, WithoutAConstraintAStopIsAStop) {
  Branch branch = root_.fork();
  DecodeParams wanted = params();
  wanted.logit_bias = {{id_of(" world"), 1e6f}};
  wanted.stop = {"orld"};
  EXPECT_EQ(session_.decode(branch, wanted).finish, Finish::kStop);
  branch = root_.fork();
  branch.constrain(Constraint::regex("x+"));
  branch.unconstrain();
  EXPECT_EQ(session_.decode(branch, wanted).finish, Finish::kStop);
}

TEST_P(ConstraintStopTest, ASnapshotKeepsHowItStopped) {
  Branch branch = root_.fork();
  ASSERT_EQ(decode(branch, "ab;cd", params(";"), By::kBranch).finish, Finish::kStopInside);
  session_.save(folder_.path() / "stopped", std::span(&branch, 1));
  Restored restored = engine_.restore(folder_.path() / "stopped");
  EXPECT_EQ(restored.branches.front().finish(), Finish::kStopInside);
  const Generation rest = restored.session.decode(restored.branches.front(), params());
  EXPECT_EQ(rest.text, "cd");
  EXPECT_EQ(rest.finish, Finish::kStop);
}

/// Ways to draw.
std::vector<DecodeParams> ways() {
  std::vector<DecodeParams> out;
  for (const double temperature : {0.0, 1.0}) {
    const DecodeParams plain{.max_tokens = 20, .temperature = temperature, .ignore_eos = true};
    out.push_back(plain);
    out.push_back(plain);
    out.back().top_k = 1;
    out.push_back(plain);
    out.back().top_p = 0.5;
    out.back().min_p = 0.5;
    out.push_back(plain);
    out.back().top_logprobs = 2;
    out.push_back(plain);
    out.back().speculate = Speculate::kSuffix;
    out.back().slack = std::numeric_limits<double>::infinity();
    out.push_back(plain);
    out.back().repetition_penalty = 2;
  }
  return out;
}

TEST_P(ConstraintStopTest, ABannedTokenIsNotDrawnWhereNothingElseIsLeft) {
  std::vector<std::pair<Token, float>> bans;  // of all that begins with a or b
  for (Token id = 0; id < engine_.info().vocab; ++id) {
    const std::string text = engine_.decode(Tokens{id}, false);
    const bool has_one = text.find_first_of("ab") != std::string::npos;
    if (has_one && !text.starts_with("<|")) bans.emplace_back(id, kBan);
  }
  ASSERT_EQ(bans.size(), 3u);
  for (const DecodeParams& way : ways()) {
    // At once, after a token that was forced, and where all that is forced is banned.
    for (const auto& [regex, text] : std::vector<std::pair<std::string, std::string>>{
             {"[ab]c", ""}, {"x[ab]", "x"}, {"xyabc", "xy"}, {"xyza", ""}}) {
      for (const By by : {By::kCall, By::kBranch}) {
        Branch branch = root_.fork();
        DecodeParams wanted = way;
        wanted.logit_bias = bans;
        const Generation got = decode(branch, regex, wanted, by);
        EXPECT_EQ(got.finish, Finish::kDeadEnd) << regex << ", " << name_of(got.finish);
        EXPECT_EQ(got.text, text) << regex;
        for (const Token id : got.ids) {
          for (const auto& [banned, bias] : bans) EXPECT_NE(id, banned);
        }
        EXPECT_EQ(branch.length(), root_.length() + std::ssize(got.ids));
        EXPECT_GT(branch.logprob(), kBan);
      }
    }
    // What is left is taken.
    Branch branch = root_.fork();
    DecodeParams wanted = way;
    wanted.logit_bias = bans;
    const Generation got = decode(branch, "[abx]", wanted, By::kBranch);
    EXPECT_EQ(got.text, "x");
    EXPECT_EQ(got.finish, Finish::kStop);
  }
}

TEST_P(ConstraintStopTest, SoItIsWithoutAConstraint) {
  std::vector<std::pair<Token, float>> all;
  for (Token id = 0; id < engine_.info().vocab; ++id) all.emplace_back(id, kBan);
  for (const DecodeParams& way : ways()) {
    Branch branch = root_.fork();
    DecodeParams wanted = way;
    wanted.logit_bias = all;
    const Generation none = session_.decode(branch, wanted);
    EXPECT_TRUE(none.ids.empty());
    EXPECT_EQ(none.finish, Finish::kDeadEnd) << name_of(none.finish);
    wanted.logit_bias.pop_back();
    const Generation last = session_.decode(branch, wanted);
    EXPECT_EQ(last.ids, Tokens(20, static_cast<Token>(engine_.info().vocab - 1)));
    EXPECT_EQ(last.finish, Finish::kLength);
  }
}

TEST_P(ConstraintStopTest, ARaceHearsOfWhoHasNothingToDraw) {
  std::vector<Branch> branches = root_.fork(3);
  branches[1].constrain(Constraint::regex("x"));
  DecodeParams wanted{.max_tokens = 5, .ignore_eos = true};
  for (Token id = 0; id < engine_.info().vocab; ++id) {
    if (id != engine_.encode("x", false).front()) wanted.logit_bias.emplace_back(id, kBan);
  }
  std::vector<std::size_t> shown;
  wanted.enough = [&](std::size_t i, const Generation&) {
    shown.push_back(i);
    return true;
  };
  const std::vector<Generation> out = session_.decode(branches, wanted);
  EXPECT_EQ(shown, std::vector<std::size_t>{1});
  EXPECT_EQ(out[1].finish, Finish::kStop);
  EXPECT_EQ(out[0].finish, Finish::kAbandoned);
}

TEST_P(ConstraintStopTest, ABiasForNoTokenIsRefused) {
  Branch branch = root_.fork();
  for (const Token id : {-1, static_cast<Token>(engine_.info().vocab)}) {
    EXPECT_ERROR(session_.decode(branch, {.logit_bias = {{id, kBan}}}), "logit_bias id");
  }
}

}  // namespace
}  // namespace dendrite
