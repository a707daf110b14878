// Speculation: the same tokens to the bit, in fewer steps, and no trace of what was not taken.
#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "support/engine_support.h"
#include "support/mtp_model.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

using test::load;
using test::Tokens;

DecodeParams drawn(double temperature, std::int64_t max_tokens = 60) {
  return {.max_tokens = max_tokens, .temperature = temperature};
}

/// Everything that a call says of a branch.
auto all_of(const Generation& out) {
  std::vector<std::tuple<Token, float, std::vector<std::pair<Token, float>>>> chosen;
  for (const ChosenToken& token : out.logprobs) {
    auto& [id, logprob, top] =
        chosen.emplace_back(token.id, token.logprob, std::vector<std::pair<Token, float>>());
    for (const TokenLogprob& other : token.top) top.emplace_back(other.id, other.logprob);
  }
  return std::tuple(out.ids, out.text, out.finish, chosen);
}

constexpr std::string_view kOfHybrid = "hybrid_";

/// Where the backend samples, and where it does not; and what drafts: the session's texts, a model,
/// which is the one that it drafts for or has never heard of it, a block drafter of random weights,
/// by its likeliest chain or a tree, of a hybrid, too, or the MTP head of a hybrid, of random
/// weights.
class SpeculationTest : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  static std::string device() {
    const std::string wanted = std::get<0>(GetParam());
    return wanted == "sampling" && test::on_cuda() ? "cuda" : wanted;
  }
  static std::string drafter() { return std::get<1>(GetParam()); }

  static bool is_hybrid() { return drafter().starts_with(kOfHybrid); }

  static Engine load_with_drafter(EngineOptions options = {}) {
    if (is_hybrid() || drafter().find("mtp") != std::string::npos) {
      static const test::MtpModel model("qwen3_5_text");
      options.drafter = is_hybrid() ? test::drafter_path("qwen3_5_full").string() : "mtp";
      return load(model.path(), std::move(options), device());
    }
    if (drafter().find("dflash") != std::string::npos) {
      options.drafter = test::drafter_path("qwen3_full").string();
    } else if (drafter() != "suffix") {
      options.draft_model = test::model_path(drafter()).string();
      options.draft_kv_tokens = 16384;
    }
    return load("qwen3", std::move(options), device());
  }

  static DecodeParams with_drafts(DecodeParams params, std::int64_t budget = 16) {
    params.speculate = drafter().starts_with("qwen")
                           ? Speculate::kDraftModel
                           : speculate_of(drafter().substr(is_hybrid() ? kOfHybrid.size() : 0));
    params.speculate_budget = budget;
    params.slack = std::numeric_limits<double>::infinity();  // whatever time they take
    return params;
  }

  struct Result {
    std::vector<decltype(all_of(Generation()))> outs;
    std::vector<double> logprobs;
    std::vector<Tokens> tokens;
    Stats stats;

    bool operator==(const Result& other) const {
      return outs == other.outs && logprobs == other.logprobs && tokens == other.tokens;
    }
  };

  /// Several calls of several branches, in a session of its own.
  Result decode(const DecodeParams& params, int calls = 3) const {
    Session session(engine_, {.seed = 7});
    Branch root = session.prefill("2+2=4, 2+2=4, 2+2=4, ");
    std::vector<Branch> branches = root.fork(4);
    Result result;
    for (int i = 0; i < calls; ++i) {
      for (const Generation& out : session.decode(branches, params)) {
        result.outs.push_back(all_of(out));
      }
    }
    for (const Branch& branch : branches) {
      result.logprobs.push_back(branch.logprob());
      result.tokens.push_back(branch.tokens());
    }
    result.stats = session.stats();
    return result;
  }

  Engine engine_ = load_with_drafter();
};

INSTANTIATE_TEST_SUITE_P(Devices, SpeculationTest,
                         ::testing::Combine(::testing::Values("", "sampling"),
                                            ::testing::Values("suffix", "qwen3", "qwen2", "dflash",
                                                              "dflash_ddtree", "suffix_dflash",
                                                              "mtp", "suffix_mtp",
                                                              "hybrid_dflash_ddtree")));

TEST_P(SpeculationTest, TokensAreThoseWithoutIt) {
  for (const double temperature : {0.0, 0.3, 1.0, 1.7}) {
    const Result plain = decode(drawn(temperature));
    for (const std::int64_t budget : {1, 3, 16, 64}) {
      EXPECT_EQ(decode(with_drafts(drawn(temperature), budget)), plain)
          << "temperature " << temperature << ", budget " << budget;
    }
  }
}

/// Whatever the prompt, and whoever is in the same steps.
TEST_P(SpeculationTest, OfManyPromptsTokensAreThoseWithoutIt) {
  const auto decode_all = [&](const DecodeParams& params, std::size_t at_once, int round) {
    Session session(engine_, {.seed = 7});
    test::Random random(static_cast<std::uint32_t>(round));
    std::vector<Branch> branches;
    for (int i = 0; i < 12; ++i) {
      const Tokens tokens = random.tokens(random.in(1, 60), engine_.info().vocab);
      branches.push_back(session.prefill(std::span<const Token>(tokens)));
    }
    std::vector<Tokens> out;
    for (std::size_t i = 0; i < branches.size(); i += at_once) {
      const std::span<Branch> some = std::span(branches).subspan(i, at_once);
      for (Generation& one : session.decode(some, params)) out.push_back(std::move(one.ids));
    }
    return out;
  };
  for (int round = 0; round < test::scaled(4); ++round) {
    DecodeParams params = drawn(round % 2 == 0 ? 0 : 0.9, 40);
    params.ignore_eos = round % 4 < 2;
    EXPECT_EQ(decode_all(with_drafts(params), 4, round), decode_all(params, 12, round)) << round;
  }
}

TEST_P(SpeculationTest, WithAllThatChangesADraw) {
  std::vector<DecodeParams> all(6, drawn(0.2));
  all[0].repetition_penalty = 1.3;
  all[1].top_k = 5, all[1].top_p = 0.8, all[1].min_p = 0.01;
  all[2].logit_bias = {{5, 2.F}, {9, -3.F}};
  all[3].top_logprobs = 3;
  all[4].top_logprobs = 0;
  all[5].constraint = Constraint::regex("[a-f0-9 ]{90}");
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(decode(with_drafts(all[i])), decode(all[i])) << i;
  }
}

TEST_P(SpeculationTest, EndsWhereItWouldEnd) {
  const Result plain = decode(drawn(0, 200), 1);
  const auto& text = std::get<1>(plain.outs[0]);
  ASSERT_GT(text.size(), 40U);
  DecodeParams stopped = drawn(0, 200);
  stopped.stop = {text.substr(30, 3)};
  EXPECT_EQ(decode(with_drafts(stopped)), decode(stopped));
  DecodeParams at_token = drawn(0, 200);
  at_token.stop_tokens = {std::get<0>(plain.outs[0])[25]};
  EXPECT_EQ(decode(with_drafts(at_token)), decode(at_token));
  for (std::int64_t tokens = 1; tokens < 12; ++tokens) {
    EXPECT_EQ(decode(with_drafts(drawn(0, tokens))), decode(drawn(0, tokens)));
  }
}

TEST_P(SpeculationTest, TakesFewerStepsAndCountsTheSame) {
  // The second branch says what the first one has said.
  const auto one_by_one = [&](const DecodeParams& params) {
    Session session(engine_, {.seed = 7});
    Branch root = session.prefill("2+2=4, 2+2=4, 2+2=4, ");
    for (int i = 0; i < 2; ++i) {
      Branch branch = root.fork();
      session.decode(branch, params);
    }
    return session.stats();
  };
  one_by_one(drawn(0));  // the prompt is known from here on
  const Stats plain = one_by_one(drawn(0));
  const Stats drafted = one_by_one(with_drafts(drawn(0)));
  if (drafter() == "suffix" || drafter() == "qwen3") {  // the others know nothing
    EXPECT_LT(drafted.steps * 3, plain.steps * 2);
    EXPECT_GT(drafted.tokens_accepted, 0);
  }
  EXPECT_GT(drafted.tokens_drafted, 0);
  EXPECT_GE(drafted.tokens_drafted, drafted.tokens_accepted);
  EXPECT_EQ(drafted.tokens_computed, plain.tokens_computed);
  EXPECT_EQ(drafted.tokens_independent, plain.tokens_independent);
  EXPECT_EQ(drafted.tokens_generated, plain.tokens_generated);
  EXPECT_EQ(drafted.forks, plain.forks);
  EXPECT_EQ(plain.tokens_drafted, 0);
}

TEST_P(SpeculationTest, ABudgetOfNothingIsPlain) {
  decode(drawn(0));  // the prompt is known from here on
  const Result plain = decode(drawn(0));
  const Result none = decode(with_drafts(drawn(0), 0));
  EXPECT_EQ(none, plain);
  EXPECT_EQ(none.stats.steps, plain.stats.steps);
  EXPECT_EQ(none.stats.tokens_drafted, 0);
  Session session(engine_);
  Branch branch = session.prefill("x");
  DecodeParams params = with_drafts(drawn(0), -1);
  EXPECT_THROW(session.decode(branch, params), Error);
}

TEST_P(SpeculationTest, HoldsThePagesOfItsTokensAndNoMore) {
  Session session(engine_, {.seed = 7});
  Branch root = session.prefill("2+2=4, 2+2=4, 2+2=4, ");
  const auto pages_after = [&](const DecodeParams& params) {
    std::vector<Branch> branches = root.fork(4);
    session.decode(branches, params);
    return session.stats().pages_used;
  };
  const std::int64_t before = session.stats().pages_used;
  const std::int64_t plain = pages_after(drawn(0));
  EXPECT_EQ(session.stats().pages_used, before);
  // Forks that went the same way through one draft have its pages in common, and where they part
  // inside a page each has a copy of it beside that one.
  EXPECT_LE(pages_after(with_drafts(drawn(0))), plain + 3);
  EXPECT_EQ(session.stats().pages_used, before);
}

TEST_P(SpeculationTest, ForksGoOnAsReplaysWould) {
  Session session(engine_, {.seed = 7});
  Branch root = session.prefill("2+2=4, 2+2=4, 2+2=4, ");
  Branch branch = root.fork();
  session.decode(branch, with_drafts(drawn(0)));
  for (std::int64_t length = root.length() + 1; length < branch.length(); length += 7) {
    Branch fork = branch.at(length);
    Branch replayed =
        session.prefill(fork.tokens(), {.stream = fork.stream(), .add_special = false});
    const Generation a = session.decode(fork, with_drafts(drawn(1)));
    const Generation b = session.decode(replayed, drawn(1));
    EXPECT_EQ(a.ids, b.ids);
  }
}

TEST_P(SpeculationTest, CallbacksHearEveryTokenOnce) {
  Session session(engine_, {.seed = 7});
  Branch root = session.prefill("2+2=4, 2+2=4, 2+2=4, ");
  std::vector<Branch> branches = root.fork(3);
  std::vector<Tokens> heard(3);
  std::vector<std::string> texts(3);
  std::vector<Branch> forks;
  DecodeParams params = with_drafts(drawn(0.3));
  params.on_token = [&](const TokenEvent& event) {
    heard[event.index].push_back(event.token);
    texts[event.index] += event.text;
    if (heard[event.index].size() % 9 == 0) forks.push_back(branches[event.index].fork());
  };
  const std::vector<Generation> outs = session.decode(branches, params);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(heard[i], outs[i].ids);
    EXPECT_EQ(texts[i], outs[i].text);
  }
  EXPECT_FALSE(forks.empty());
  DecodeParams cut = with_drafts(drawn(0.3, 200));  // more than drafts give in three steps
  cut.ignore_eos = true;
  int steps = 0;
  cut.on_step = [&](std::span<const TokenEvent>) { return ++steps < 3; };
  for (const Generation& out : session.decode(branches, cut)) {
    EXPECT_EQ(out.finish, Finish::kCancelled);
  }
  EXPECT_EQ(steps, 3);
}

TEST_P(SpeculationTest, BudgetsOfTokensHold) {
  for (const std::int64_t tokens : {30, 47, 64}) {
    const auto decode_within = [&](const DecodeParams& params) {
      const Engine engine = load_with_drafter();
      Session session(engine, {.seed = 7, .budget = {.tokens = tokens}});
      Branch branch = session.prefill("2+2=4, 2+2=4, 2+2=4, ");
      const Generation out = session.decode(branch, params);
      return std::tuple(out.ids, out.finish, session.stats().tokens_computed);
    };
    EXPECT_EQ(decode_within(with_drafts(drawn(0))), decode_within(drawn(0))) << tokens;
  }
}

TEST_P(SpeculationTest, GivesWayWherePagesAreShort) {
  const auto decode_in = [&](std::int64_t kv_tokens, const DecodeParams& params) {
    const Engine small = load_with_drafter({.kv_tokens = kv_tokens});
    Session session(small, {.seed = 7});
    Branch root = session.prefill("2+2=4, 2+2=4, 2+2=4, ");
    std::vector<Branch> branches = root.fork(4);
    std::vector<Tokens> out;
    for (const Generation& one : session.decode(branches, params)) out.push_back(one.ids);
    return out;
  };
  const std::vector<Tokens> plain = decode_in(16384, drawn(0));
  for (const std::int64_t kv_tokens : {400, 480, 640}) {
    EXPECT_EQ(decode_in(kv_tokens, with_drafts(drawn(0), 64)), plain) << kv_tokens;
  }
}

}  // namespace
}  // namespace dendrite
