// What is counted and told of speculation: numbers that add up, and none where there is none.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/drafts/draft_sources.h"
#include "support/engine_support.h"
#include "support/scripted_drafter.h"

namespace dendrite {
namespace {

using test::KnownTexts;
using test::scripted;
using test::ScriptedDraft;
using test::ScriptedLane;
using test::Tokens;

constexpr std::int64_t kVocab = 320;

Tokens prompt() {
  return test::Random(3).tokens(20, kVocab);
}

DecodeParams drawn(std::int64_t max_tokens) {
  return {.max_tokens = max_tokens, .temperature = 1, .ignore_eos = true};
}

std::int64_t sum(const SpeculationStats& stats) {
  return std::reduce(stats.accept_depth_by_position.begin(), stats.accept_depth_by_position.end());
}

void expect_to_add_up(const Stats& stats) {
  const SpeculationStats& of = stats.speculation;
  EXPECT_EQ(stats.tokens_drafted, stats.tokens_accepted - of.tokens_shared + of.tokens_wasted);
  EXPECT_EQ(sum(of), stats.tokens_accepted);
  EXPECT_TRUE(std::ranges::is_sorted(of.accept_depth_by_position, std::greater{}));
  EXPECT_LE(of.accept_depth_by_position[0], of.drafts);
  EXPECT_LE(stats.tokens_drafted, of.tokens_proposed);
  EXPECT_LE(stats.tokens_drafted, of.tokens_budget);
  EXPECT_LE(of.tokens_accepted_as_chain + of.siblings_taken, stats.tokens_accepted);
  EXPECT_LE(of.steps_drafted + of.steps_plain, stats.steps);
  EXPECT_EQ(of.steps_drafted == 0, of.steps_drafted_seconds == 0);
  EXPECT_EQ(of.steps_plain == 0, of.steps_plain_seconds == 0);
}

class DraftStatsTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string device() {
    return std::string(GetParam()) == "sampling" && test::on_cuda() ? "cuda" : GetParam();
  }

  /// A branch of its own session, and its text beforehand, without drafts.
  Branch known_branch(Session& session, std::int64_t tokens) {
    {
      Session plain(engine_, {.seed = 7});
      Branch branch = plain.prefill(std::span<const Token>(prompt()));
      plain.decode(branch, drawn(tokens));
      known_.add(branch);
    }
    return session.prefill(std::span<const Token>(prompt()));
  }

  Engine engine_ = test::load("qwen3", {.prefix_index = false}, device());
  KnownTexts known_;
};

INSTANTIATE_TEST_SUITE_P(Devices, DraftStatsTest, ::testing::Values("", "sampling"));

TEST_P(DraftStatsTest, AddUpWhateverIsDrafted) {
  for (const char* drafter : {"suffix", "qwen3", "qwen2"}) {
    const bool is_suffix = std::string(drafter) == "suffix";
    EngineOptions options{.draft_kv_tokens = 16384};
    if (!is_suffix) options.draft_model = test::model_path(drafter).string();
    const Engine engine = test::load("qwen3", options, device());
    Session session(engine, {.seed = 7});
    Branch root = session.prefill("2+2=4, 2+2=4, 2+2=4, ");
    DecodeParams params = scripted(drawn(40));
    params.temperature = 0.3;
    if (is_suffix) params.speculate = Speculate::kSuffix;
    for (int call = 0; call < 3; ++call) {
      std::vector<Branch> branches = root.fork(3);
      session.decode(branches, params);
      expect_to_add_up(session.stats());
    }
    const SpeculationStats of = session.stats().speculation;
    EXPECT_GT(of.drafts, 0) << drafter;
    if (std::string(drafter) == "qwen2") {
      EXPECT_GT(of.tokens_wasted, 0);
    }
    EXPECT_GT(of.steps_drafted, 0) << drafter;
    EXPECT_GT(of.draft_seconds, 0) << drafter;
    EXPECT_EQ(of.fallbacks, 0) << drafter;
    // The engine's are those of its only session.
    EXPECT_EQ(to_json(engine.stats().speculation), to_json(of)) << drafter;
  }
}

TEST_P(DraftStatsTest, AreNothingWithoutSpeculation) {
  Session session(engine_);
  Branch branch = session.prefill(std::span<const Token>(prompt()));
  session.decode(branch, drawn(20));
  DecodeParams params = drawn(20);
  params.speculate = Speculate::kSuffix;
  params.speculate_budget = 0;
  session.decode(branch, params);
  EXPECT_EQ(to_json(session.stats().speculation), to_json(SpeculationStats()));
  EXPECT_EQ(to_json(engine_.stats().speculation), to_json(SpeculationStats()));
}

TEST_P(DraftStatsTest, TellHowFarDraftsCame) {
  Session session(engine_, {.seed = 7});
  Branch branch = known_branch(session, 41);
  // Three right ones, and one that is wrong: of 10 steps each gives 4 tokens.
  test::draft_by(engine_, [&](const ScriptedLane& lane, ScriptedDraft& draft) {
    const std::span<const Token> right = known_.after(lane, 4);
    const std::int32_t last =
        draft.add_chain(-1, right.first(std::min<std::size_t>(3, right.size())));
    if (right.size() == 4) draft.add(last, (right[3] + 1) % kVocab);
  });
  session.decode(branch, scripted(drawn(41), 8));
  const Stats stats = session.stats();
  expect_to_add_up(stats);
  const SpeculationStats& of = stats.speculation;
  EXPECT_EQ(of.drafts, 10);
  EXPECT_EQ(of.tokens_budget, 80);
  EXPECT_EQ(stats.tokens_accepted, 30);
  EXPECT_EQ(of.tokens_accepted_as_chain, 30);
  EXPECT_EQ(of.siblings_taken, 0);
  EXPECT_EQ(of.tokens_wasted, 9);  // the last draft ends with the text
  EXPECT_EQ(of.accept_depth(), 3);
  EXPECT_EQ(of.accept_depth_by_position[2], 10);
  EXPECT_EQ(of.accept_depth_by_position[3], 0);
  EXPECT_EQ(of.steps_drafted, 10);
}

TEST_P(DraftStatsTest, TellWhichSiblingsWereTaken) {
  Session session(engine_, {.seed = 7});
  Branch branch = known_branch(session, 31);
  // A right one, then its child is the second choice, and one more after that.
  test::draft_by(engine_, [&](const ScriptedLane& lane, ScriptedDraft& draft) {
    const std::span<const Token> right = known_.after(lane, 3);
    const std::int32_t first =
        draft.add_chain(-1, right.first(std::min<std::size_t>(1, right.size())));
    if (right.size() < 2) return;
    draft.add(first, (right[1] + 1) % kVocab);
    draft.add_chain(draft.add(first, right[1]), right.subspan(2));
  });
  session.decode(branch, scripted(drawn(31), 8));
  const Stats stats = session.stats();
  expect_to_add_up(stats);
  EXPECT_EQ(stats.speculation.drafts, 8);
  EXPECT_EQ(stats.tokens_accepted, 22);  // 7 times 3 and once 1, with the text's end after it
  EXPECT_EQ(stats.speculation.siblings_taken, 7);
  EXPECT_EQ(stats.speculation.tokens_accepted_as_chain, 8);
}

TEST_P(DraftStatsTest, CountWhoCouldNotBeDraftedFor) {
  Session session(engine_, {.seed = 7});
  Branch branch = session.prefill(std::span<const Token>(prompt()));
  DecodeParams params = scripted(drawn(20));
  params.top_logprobs = 2;
  params.speculate = Speculate::kSuffix;
  session.decode(branch, params);
  const SpeculationStats of = session.stats().speculation;
  if (core_of(engine_)->backend->sampler() != nullptr) {
    EXPECT_GT(of.fallbacks, 0);
    EXPECT_EQ(of.drafts, 0);
    EXPECT_EQ(of.draft_seconds, 0);
  } else {
    EXPECT_EQ(of.fallbacks, 0);
  }
}

TEST_P(DraftStatsTest, CountDraftsThatTheModelHasNoPositionsFor) {
  EngineOptions options{.draft_kv_tokens = 16384};
  options.draft_model = test::model_path("llama_dynamic").string();
  const Engine engine = test::load("llama_f32", options, device());  // 512 and 256
  Session session(engine);
  Branch branch = session.prefill(std::span<const Token>(test::Random(3).tokens(230, 272)));
  session.decode(branch, scripted(drawn(8)));
  EXPECT_EQ(session.stats().speculation.fallbacks, 0);
  session.decode(branch, scripted(drawn(30)));
  EXPECT_GT(session.stats().speculation.fallbacks, 10);
}

TEST_P(DraftStatsTest, CountTurnsAfterTheModelFailed) {
  EngineOptions options{.draft_kv_tokens = 16384};
  options.draft_model = test::model_path("qwen3").string();
  const Engine engine = test::load("qwen3", options, device());
  const Engine& model =
      static_cast<const DraftModel&>(*sources_of(*core_of(engine)).draft_model()).model();
  core_of(model)->model_info.vocab = 1;  // no prompt has such tokens
  const auto text_of = [&](const DecodeParams& params) {
    Session session(engine, {.seed = 7});
    Branch branch = session.prefill(std::span<const Token>(prompt()));
    const Tokens ids = session.decode(branch, params).ids;
    return std::pair(ids, session.stats().speculation);
  };
  const auto [plain, none] = text_of(drawn(12));
  const auto [text, counts] = text_of(scripted(drawn(12)));
  EXPECT_EQ(text, plain);
  EXPECT_EQ(none.fallbacks, 0);
  EXPECT_EQ(counts.fallbacks, 12);  // one where the prompt had the token
  EXPECT_EQ(counts.drafts, 0);
  EXPECT_EQ(counts.steps_plain, 11);
}

TEST_P(DraftStatsTest, StayWithTheEngine) {
  std::string told;
  {
    Session session(engine_, {.seed = 7});
    Branch branch = known_branch(session, 20);
    test::draft_by(engine_, [&](const ScriptedLane& lane, ScriptedDraft& draft) {
      draft.add_chain(-1, known_.after(lane, 4));
    });
    session.decode(branch, scripted(drawn(20)));
    told = to_json(session.stats().speculation);
  }
  EXPECT_EQ(to_json(engine_.stats().speculation), told);
  const nlohmann::json json = nlohmann::json::parse(told);
  EXPECT_EQ(json["drafts"], 4);
  EXPECT_EQ(json["accept_depth"], 3.75);
  EXPECT_EQ(json["accept_depth_by_position"].size(), kDraftDepth);
  EXPECT_EQ(json["accept_depth_by_position"][3], 3);
}

TEST_P(DraftStatsTest, EveryDraftIsAnEventForWhoListens) {
  Session session(engine_, {.seed = 7});
  Branch branch = known_branch(session, 21);
  const auto wrong = [](Token right) { return static_cast<Token>((right + 1) % kVocab); };
  // One that is wrong beside each that is right.
  test::draft_by(engine_, [&](const ScriptedLane& lane, ScriptedDraft& draft) {
    std::int32_t at = -1;
    for (const Token right : known_.after(lane, 3)) {
      draft.add(at, wrong(right));
      at = draft.add(at, right);
    }
  });
  EventQueue queue = engine_.events(mask_of(EventKind::kDraft));
  const std::int64_t begin = branch.length();
  session.decode(branch, scripted(drawn(21)));
  const std::vector<StoredEvent> events = queue.take();
  ASSERT_EQ(events.size(), 5U);
  const Tokens text = branch.tokens();
  std::int64_t length = begin + 1;
  for (const StoredEvent& event : events) {
    EXPECT_EQ(event.branch, branch.id());
    EXPECT_EQ(event.speculate, Speculate::kDraftModel);
    EXPECT_EQ(event.tokens, 3);
    EXPECT_EQ(event.rows, 6);
    ASSERT_EQ(event.drafted.size(), 6U);
    for (std::size_t i = 0; i < 6; ++i) {
      const Token right = text[static_cast<std::size_t>(length) + i / 2];
      EXPECT_EQ(event.drafted[i].token, i % 2 == 0 ? wrong(right) : right);
      EXPECT_EQ(event.drafted[i].parent, static_cast<std::int32_t>(i / 2 * 2) - 1);
      EXPECT_EQ(event.drafted[i].accepted, i % 2 == 1);
    }
    length += 4;
    EXPECT_EQ(event.length, length);
  }
  const nlohmann::json line = nlohmann::json::parse(to_json_line(events[0]));
  EXPECT_EQ(line["event"], "draft");
  EXPECT_EQ(line["speculate"], "draft_model");
  EXPECT_EQ(line["drafted"].size(), 6U);
  EXPECT_EQ(line["drafted"][1]["parent"], -1);
  EXPECT_EQ(line["drafted"][1]["accepted"], true);
  EXPECT_EQ(line["drafted"][2]["token"], events[0].drafted[2].token);
  EXPECT_EQ(engine_.stats().events, 5);
}

TEST_P(DraftStatsTest, EventsHaveWhatGotARow) {
  Session session(engine_, {.seed = 7});
  Branch branch = known_branch(session, 12);
  test::draft_by(engine_, [&](const ScriptedLane& lane, ScriptedDraft& draft) {
    const std::span<const Token> right = known_.after(lane, 3);
    if (right.size() < 3) return;
    const std::int32_t first = draft.add(-1, right[0]);
    draft.add(-1, (right[0] + 1) % kVocab);
    draft.add_chain(first, right.subspan(1));
  });
  core_of(engine_)->step_rows = 4;  // the branch's, and those of the first chain
  EventQueue queue = engine_.events(mask_of(EventKind::kDraft));
  session.decode(branch, scripted(drawn(12)));
  const std::vector<StoredEvent> events = queue.take();
  ASSERT_FALSE(events.empty());
  ASSERT_EQ(events[0].drafted.size(), 3U);
  for (std::int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(events[0].drafted[static_cast<std::size_t>(i)].parent, i - 1);
  }
  EXPECT_GT(session.stats().speculation.tokens_proposed, session.stats().tokens_drafted);
  expect_to_add_up(session.stats());
}

}  // namespace
}  // namespace dendrite
